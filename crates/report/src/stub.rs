#![allow(missing_docs)]
pub mod audit {
    use nearfar_placement::change::{Change, DistanceChange};
    use serde::Serialize;
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Severity {
        Fact,
        Notice,
        Warning,
        Critical,
    }
    #[derive(Clone, Debug, Serialize)]
    pub struct Evidence {
        pub file: String,
        pub value: String,
    }
    #[derive(Clone, Debug, Serialize)]
    pub struct Finding {
        pub rule: String,
        pub severity: Severity,
        pub subject: String,
        pub message: String,
        pub evidence: Vec<Evidence>,
        pub cost: Option<DistanceChange>,
        pub mend: Option<Change>,
        pub advice: Option<String>,
        pub docs: String,
    }
    #[derive(Clone, Debug, Serialize)]
    pub struct NotChecked {
        pub rule: String,
        pub because: String,
    }
    #[derive(Clone, Debug, Serialize, Default)]
    pub struct Audit {
        pub findings: Vec<Finding>,
        pub not_checked: Vec<NotChecked>,
        pub checked: Vec<String>,
    }
}

//! The layout of the file, and how an older one becomes the newest.
//!
//! A step is never changed once it was released: files of every version are out there. A new column or table is a new
//! step at the end of [`STEPS`].

use rusqlite::{Connection, TransactionBehavior};

/// "nfar", so that `file` and this program tell a store from any other SQLite file.
pub(super) const APPLICATION_ID: i32 = 0x6e66_6172;

/// What leads from each version to the next: the first from an empty file to version 1.
pub(super) const STEPS: &[&str] = &[
    "
    CREATE TABLE machine (
        id INTEGER PRIMARY KEY,
        sha256 BLOB NOT NULL UNIQUE,
        json_zlib BLOB NOT NULL
    ) STRICT;
    CREATE TABLE run (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        uid TEXT NOT NULL UNIQUE,
        experiment TEXT NOT NULL,
        title TEXT NOT NULL,
        label TEXT,
        state TEXT NOT NULL CHECK (state IN ('running', 'complete', 'interrupted', 'failed')),
        failure TEXT,
        started_at_s REAL NOT NULL,
        finished_at_s REAL,
        samples INTEGER NOT NULL DEFAULT 0,
        doubtful INTEGER NOT NULL DEFAULT 0,
        failed INTEGER NOT NULL DEFAULT 0,
        cells INTEGER NOT NULL,
        samples_per_cell INTEGER NOT NULL,
        host TEXT NOT NULL,
        kernel TEXT NOT NULL,
        emulated TEXT,
        nearfar TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        pid INTEGER NOT NULL,
        started_ticks INTEGER NOT NULL,
        boot TEXT NOT NULL,
        pid_namespace TEXT NOT NULL,
        machine INTEGER NOT NULL REFERENCES machine (id)
    ) STRICT;
    CREATE INDEX run_by_machine ON run (machine);
    CREATE INDEX run_by_experiment ON run (experiment);
    CREATE TABLE detail (
        run INTEGER PRIMARY KEY REFERENCES run (id) ON DELETE CASCADE,
        parameters TEXT NOT NULL,
        factors TEXT NOT NULL,
        plan TEXT NOT NULL,
        seed INTEGER NOT NULL,
        warnings TEXT NOT NULL,
        kernel_version TEXT NOT NULL,
        kernel_command_line TEXT NOT NULL
    ) STRICT;
    CREATE TABLE sample (
        run INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        round INTEGER NOT NULL,
        cell TEXT NOT NULL,
        started_at_s REAL NOT NULL,
        took_s REAL NOT NULL,
        seconds REAL,
        failed TEXT,
        doubts TEXT NOT NULL,
        sample TEXT NOT NULL,
        PRIMARY KEY (run, number)
    ) STRICT, WITHOUT ROWID;
",
    // Several metrics a sample: what layout 1 has in seconds becomes the metric elapsed_s.
    r#"
    ALTER TABLE run RENAME COLUMN doubtful TO with_warnings;
    ALTER TABLE detail ADD COLUMN metrics TEXT NOT NULL DEFAULT
        '[{"name":"elapsed_s","unit":"s","better":"lower","primary":true,"kind":"real"}]';
    ALTER TABLE sample RENAME COLUMN doubts TO warnings;
    ALTER TABLE sample RENAME COLUMN sample TO detail;
    ALTER TABLE sample ADD COLUMN metric_values TEXT NOT NULL DEFAULT '{}';
    UPDATE sample SET metric_values = printf('{"elapsed_s":%!.17g}', seconds) WHERE seconds IS NOT NULL;
    ALTER TABLE sample DROP COLUMN seconds;
"#,
    RENAME_PROBE_FACTORS,
    "ALTER TABLE detail ADD COLUMN targets TEXT NOT NULL DEFAULT '[]'",
];

/// Gives the factors of the probe their names where a run has those of the published table (PNID, NB, Mem, CPU).
/// Does nothing a second time. Also made after an import, whose files are as old as their exporter.
pub(crate) const RENAME_PROBE_FACTORS: &str = r#"
    CREATE TEMP TABLE renamed AS
        SELECT detail.run FROM detail JOIN run ON run.id = detail.run
        WHERE run.experiment = 'probe' AND detail.factors LIKE '%"name":"pnid"%';
    UPDATE sample SET cell =
        replace(replace(replace(replace(cell, '"pnid":', '"preferred_node":'),
            '"nb":', '"numa_balancing":'), '"mem":', '"memory_node":'), '"cpu":', '"cpu_node":')
        WHERE run IN (SELECT run FROM renamed);
    UPDATE detail SET plan =
        replace(replace(replace(replace(plan, '"pnid":', '"preferred_node":'),
            '"nb":', '"numa_balancing":'), '"mem":', '"memory_node":'), '"cpu":', '"cpu_node":'),
        factors =
        replace(replace(replace(replace(factors, '"name":"pnid"', '"name":"preferred_node"'),
            '"name":"nb"', '"name":"numa_balancing"'), '"name":"mem"', '"name":"memory_node"'),
            '"name":"cpu"', '"name":"cpu_node"')
        WHERE run IN (SELECT run FROM renamed);
    DROP TABLE renamed;
"#;

/// The version of a file's layout; 0 for one that holds nothing yet.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Brings the layout up to the last of these steps. Another process that does the same waits, and then finds it done.
/// Gives false, and leaves the file alone, where it has no version but tables of another program.
pub(super) fn upgrade(connection: &mut Connection, steps: &[&str]) -> rusqlite::Result<bool> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let from = usize::try_from(version(&transaction)?).unwrap_or(usize::MAX);
    let tables: i64 =
        transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if from == 0 && tables > 0 {
        return Ok(false);
    }
    for step in steps.iter().skip(from) {
        transaction.execute_batch(step)?;
    }
    if from < steps.len() {
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", steps.len() as i64)?;
    }
    transaction.commit()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_taken_once_and_keeps_what_is_there() {
        let mut connection = Connection::open_in_memory().unwrap();
        assert!(
            upgrade(
                &mut connection,
                &["CREATE TABLE t (a); INSERT INTO t VALUES (1)"]
            )
            .unwrap()
        );
        let later = [
            "CREATE TABLE t (a); INSERT INTO t VALUES (1)",
            "ALTER TABLE t ADD COLUMN b DEFAULT 7",
        ];
        upgrade(&mut connection, &later).unwrap();
        upgrade(&mut connection, &later).unwrap();
        assert_eq!(version(&connection).unwrap(), 2);
        let row = connection.query_row("SELECT a, b FROM t", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        });
        assert_eq!(row.unwrap(), (1, 7));
    }

    #[test]
    fn a_step_that_fails_leaves_the_file_as_it_was() {
        let mut connection = Connection::open_in_memory().unwrap();
        assert!(upgrade(&mut connection, &["CREATE TABLE t (a)", "nonsense"]).is_err());
        assert_eq!(version(&connection).unwrap(), 0);
        assert!(connection.prepare("SELECT * FROM t").is_err());
    }

    #[test]
    fn tables_of_somebody_else_are_left_alone() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch("CREATE TABLE mail (text)")
            .unwrap();
        assert!(!upgrade(&mut connection, &["CREATE TABLE t (a)"]).unwrap());
        assert!(connection.prepare("SELECT * FROM t").is_err());
    }
}

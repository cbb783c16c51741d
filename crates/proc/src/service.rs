//! Who a control group is of: a unit, a container, a job, a virtual machine.
//!
//! ```text
//! /system.slice/redis.service                                             unit         systemd
//! /system.slice/docker-ID.scope, /docker/ID                               container    docker
//! /machine.slice/libpod-ID.scope/container                                container    podman
//! /kubepods.slice/../kubepods-burstable-podUID.slice/crio-ID.scope        container    CRI-O, containerd, of a pod
//! /kubepods/burstable/podUID/ID                                           container    the kubelet's driver cgroupfs
//! ../kubepods-podUID.slice:cri-containerd:ID                              container    containerd without SystemdCgroup
//! /system.slice/slurmstepd.scope/job_7/step_0/user/task_1                 job          Slurm, version 2
//! /slurm/uid_1000/job_7/step_batch                                        job          Slurm, version 1
//! /machine.slice/machine-qemu\x2d1\x2ddb.scope/libvirt/emulator           machine      libvirt
//! /qemu.slice/100.scope                                                   machine      Proxmox
//! /lxc.payload.web, /lxc/web, /machine.slice/machine-lxc\x2d9\x2dweb.scope  container  LXC, Incus
//! /machine.slice/machine-web.scope, systemd-nspawn@web.service            machine      systemd-nspawn
//! ```
//!
//! Of several the innermost counts, a unit only where there is nothing else: units in a container are parts of it.

/// Digits of a container's id that its tools show.
const SHORT_ID: usize = 12;
/// Hexadecimal digits of a container's id: a SHA-256 sum.
const ID: usize = 64;

/// What a control group stands for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ServiceKind {
    /// Of systemd.
    Unit,
    Container,
    /// A step of a batch system's job.
    Job,
    /// A virtual machine, or a container that is a machine of its own.
    Machine,
}

impl ServiceKind {
    /// As labels have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Container => "container",
            Self::Job => "job",
            Self::Machine => "machine",
        }
    }
}

/// Who a control group is of, by its path alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Service<'a> {
    pub kind: ServiceKind,
    /// The path of its group: without those that it made below its own.
    pub group: &'a str,
    /// By whose name people know it: `docker`, `podman`, `slurm`, `qemu`; `None` of a unit.
    pub tool: Option<&'a str>,
    /// With that before it: `redis.service`, `docker 0123456789ab`, `slurm 7.batch`, `qemu db`.
    pub name: String,
    /// The whole id of a container that has one.
    pub id: Option<&'a str>,
    /// The id of the pod that a container, or the group itself, belongs to.
    pub pod: Option<String>,
    /// Number and step of a job; a step is a number, `batch`, `extern` or `interactive`.
    pub job: Option<(&'a str, Option<&'a str>)>,
}

impl<'a> Service<'a> {
    /// `None` for slices and the root.
    pub fn of(group: &'a str) -> Option<Self> {
        let ends = group
            .match_indices('/')
            .map(|(end, _)| end)
            .chain([group.len()]);
        let paths: Vec<&str> = ends.map(|end| &group[..end]).collect();
        let innermost = |of: fn(&'a str) -> Option<Self>| paths.iter().rev().find_map(|it| of(it));
        let mut found = innermost(job)
            .or_else(|| innermost(inside))
            .or_else(|| innermost(unit))?;
        found.pod = group.split('/').find_map(pod);
        Some(found)
    }

    fn new(kind: ServiceKind, group: &'a str, tool: &'a str, name: &str) -> Self {
        Self {
            kind,
            group,
            tool: Some(tool),
            name: format!("{tool} {name}"),
            id: None,
            pod: None,
            job: None,
        }
    }
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn unit(path: &str) -> Option<Service<'_>> {
    let part = last(path);
    let is_unit = [".service", ".scope", ".socket", ".mount"]
        .iter()
        .any(|suffix| part.ends_with(suffix));
    is_unit.then(|| Service {
        kind: ServiceKind::Unit,
        group: path,
        tool: None,
        name: part.to_owned(),
        id: None,
        pod: None,
        job: None,
    })
}

/// `.../slurmstepd.scope/job_7/step_0`, `/slurm_NODE/uid_1000/job_7/step_batch`; a job without a step is of its first process.
fn job(path: &str) -> Option<Service<'_>> {
    let mut parts = path.rsplit('/');
    let (part, before) = (parts.next()?, parts.next()?);
    let (number, step) = match part.strip_prefix("step_") {
        Some(step) => (before.strip_prefix("job_")?, Some(step)),
        None => (part.strip_prefix("job_")?, None),
    };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number || !path.contains("slurm") {
        return None;
    }
    let name = match step {
        Some(step) => format!("{number}.{step}"),
        None => number.to_owned(),
    };
    let mut found = Service::new(ServiceKind::Job, path, "slurm", &name);
    found.job = Some((number, step));
    Some(found)
}

/// A container or machine.
fn inside(path: &str) -> Option<Service<'_>> {
    let part = last(path);
    let stem = part.strip_suffix(".scope").unwrap_or(part);
    let parent = path.strip_suffix(part)?.trim_end_matches('/');
    if let Some(found) = with_id(path, stem, last(parent)) {
        return Some(found);
    }
    let machine = |tool, name: &str| {
        let name = unescaped(name);
        let found = Service::new(ServiceKind::Machine, path, tool, &name);
        (!name.is_empty()).then_some(found)
    };
    if let Some(name) = stem.strip_prefix("lxc.payload.") {
        return machine("lxc", name);
    }
    if last(parent) == "lxc" {
        return machine("lxc", part);
    }
    if last(parent) == "qemu.slice" && part.ends_with(".scope") {
        return machine("qemu", stem);
    }
    if let Some(name) = part.strip_suffix(".libvirt-qemu") {
        return machine("qemu", without_number(name.strip_prefix("qemu-")?));
    }
    if let Some(name) = part.strip_prefix("systemd-nspawn@") {
        return machine("nspawn", name.strip_suffix(".service")?);
    }
    let name = part.strip_prefix("machine-")?.strip_suffix(".scope")?;
    let name = unescaped(name);
    match (name.strip_prefix("qemu-"), name.strip_prefix("lxc-")) {
        (Some(name), _) => machine("qemu", without_number(name)),
        (_, Some(name)) => machine("lxc", without_number(name)),
        (None, None) => machine("nspawn", &name),
    }
}

/// `docker-ID`, `cri-containerd-ID`, `kubepods-podUID.slice:cri-containerd:ID`, and a folder `ID` without systemd.
fn with_id<'a>(path: &'a str, stem: &'a str, parent: &'a str) -> Option<Service<'a>> {
    let before = stem.len().checked_sub(ID)?;
    let (before, id) = (stem.get(..before)?, stem.get(before..)?);
    if !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let runtime = match before.strip_suffix(['-', ':']) {
        Some(before) => before.rsplit(':').next().unwrap_or(before),
        None if before.is_empty() && parent == "docker" => parent,
        None if before.is_empty() => "container",
        None => return None,
    };
    // What watches the container is outside of it.
    if runtime.ends_with("conmon") {
        return None;
    }
    let tool = match runtime {
        "libpod" => "podman",
        other => other,
    };
    let mut found = Service::new(ServiceKind::Container, path, tool, &id[..SHORT_ID]);
    found.id = Some(id);
    Some(found)
}

/// `3-db` is the third machine that was started, named `db`.
fn without_number(name: &str) -> &str {
    match name.split_once('-') {
        Some((number, name)) if number.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => name,
    }
}

/// `\x2d` is a hyphen (systemd.unit(5), string escaping); what is escaped otherwise stays.
fn unescaped(name: &str) -> String {
    name.replace("\\x2d", "-")
}

/// `pod01234567-89ab-...`, `kubepods-burstable-pod01234567_89ab_....slice`: a UUID, of static pods a sum without hyphens.
fn pod(part: &str) -> Option<String> {
    let part = part.split(':').next()?;
    let part = part.strip_suffix(".slice").unwrap_or(part);
    let uid = match part.rsplit_once("-pod") {
        Some((before, uid)) if before.contains("kubepods") => uid.replace('_', "-"),
        _ => part.strip_prefix("pod")?.to_owned(),
    };
    let is_uid = uid.len() >= 32
        && uid
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_uid.then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID_A: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const UID: &str = "01234567-89ab-cdef-0123-456789abcdef";

    /// Kind, name and group of a path in which `ID`, `UID` and `U_I_D` stand for ids.
    fn of(path: &str) -> Option<(ServiceKind, String, String)> {
        let path = filled(path);
        Service::of(&path).map(|it| (it.kind, it.name, it.group.to_owned()))
    }

    fn filled(path: &str) -> String {
        path.replace("U_I_D", &UID.replace('-', "_"))
            .replace("UID", UID)
            .replace("ID", ID_A)
    }

    #[test]
    fn groups_have_the_names_of_units_containers_jobs_and_machines() {
        use ServiceKind::{Container, Job, Machine, Unit};
        let pod = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_I_D.slice";
        for (path, kind, name, group) in [
            ("/system.slice/redis.service", Unit, "redis.service", ""),
            (
                "/system.slice/redis.service/worker",
                Unit,
                "redis.service",
                "/worker",
            ),
            (
                "/user.slice/user@0.service/app.slice/redis.service/x/y",
                Unit,
                "redis.service",
                "/x/y",
            ),
            (
                "/system.slice/docker-ID.scope",
                Container,
                "docker 0123456789ab",
                "",
            ),
            ("/docker/ID", Container, "docker 0123456789ab", ""),
            (
                "/machine.slice/libpod-conmon-ID.scope",
                Unit,
                &filled("libpod-conmon-ID.scope"),
                "",
            ),
            (
                "/machine.slice/libpod-ID.scope/container",
                Container,
                "podman 0123456789ab",
                "/container",
            ),
            (
                &format!("{pod}/cri-containerd-ID.scope"),
                Container,
                "cri-containerd 0123456789ab",
                "",
            ),
            (
                &format!("{pod}/crio-ID.scope"),
                Container,
                "crio 0123456789ab",
                "",
            ),
            (
                "/kubepods/burstable/podUID/ID",
                Container,
                "container 0123456789ab",
                "",
            ),
            (
                "/system.slice/containerd.service/kubepods-podU_I_D.slice:cri-containerd:ID",
                Container,
                "cri-containerd 0123456789ab",
                "",
            ),
            // systemd in a container.
            (
                &format!("{pod}/crio-ID.scope/system.slice/nginx.service"),
                Container,
                "crio 0123456789ab",
                "/system.slice/nginx.service",
            ),
            (
                "/lxc.payload.web/system.slice/nginx.service",
                Machine,
                "lxc web",
                "/system.slice/nginx.service",
            ),
            (
                "/lxc/101/ns/init.scope",
                Machine,
                "lxc 101",
                "/ns/init.scope",
            ),
            (
                "/system.slice/slurmstepd.scope/job_71/step_batch/user/task_0",
                Job,
                "slurm 71.batch",
                "/user/task_0",
            ),
            (
                "/system.slice/node1_slurmstepd.scope/job_71/step_0/user",
                Job,
                "slurm 71.0",
                "/user",
            ),
            (
                "/slurm/uid_1000/job_71/step_extern/task_0",
                Job,
                "slurm 71.extern",
                "/task_0",
            ),
            ("/slurm_node1/uid_1000/job_71", Job, "slurm 71", ""),
            (
                "/machine.slice/machine-qemu\\x2d3\\x2dmail\\x2d2.scope/libvirt/vcpu0",
                Machine,
                "qemu mail-2",
                "/libvirt/vcpu0",
            ),
            (
                "/machine/qemu-3-mail.libvirt-qemu/emulator",
                Machine,
                "qemu mail",
                "/emulator",
            ),
            ("/qemu.slice/100.scope", Machine, "qemu 100", ""),
            (
                "/machine.slice/machine-lxc\\x2d9\\x2dweb.scope",
                Machine,
                "lxc web",
                "",
            ),
            (
                "/machine.slice/systemd-nspawn@web.service/payload",
                Machine,
                "nspawn web",
                "/payload",
            ),
        ] {
            let group = path.strip_suffix(group).unwrap();
            assert_eq!(
                of(path),
                Some((kind, name.to_owned(), filled(group))),
                "{path}"
            );
        }
        for path in [
            "/user.slice",
            "/",
            "",
            "/job_7",
            "/../..",
            &"/é".repeat(40),
            "/lxc",
        ] {
            assert_eq!(of(path), None, "{path}");
        }
    }

    #[test]
    fn a_container_belongs_to_the_pod_above_it() {
        for path in [
            "/kubepods.slice/kubepods-podU_I_D.slice/crio-ID.scope",
            "/kubepods/besteffort/podUID/ID",
            "/system.slice/docker-ID.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podU_I_D.slice/cri-containerd-ID.scope",
            "/system.slice/containerd.service/kubepods-podU_I_D.slice:cri-containerd:ID",
        ] {
            let path = filled(path);
            let found = Service::of(&path).unwrap();
            assert_eq!(
                (found.pod.as_deref(), found.id),
                (Some(UID), Some(ID_A)),
                "{path}"
            );
        }
        let path = filled("/system.slice/docker-ID.scope");
        assert_eq!(Service::of(&path).unwrap().pod, None);
    }

    proptest::proptest! {
        #[test]
        fn no_path_panics(path: String) {
            let found = Service::of(&path);
            assert!(found.is_none_or(|it| path.starts_with(it.group)));
        }
    }
}

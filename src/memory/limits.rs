//! How much memory this process may use: what the machine has, what its control group allows, what may be locked.

use std::{fs, path::Path};

/// Memory of the machine in bytes, or what the process's control groups allow if that is less.
pub fn memory_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let kib: u64 =
        meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.split_whitespace().next()?.parse().ok()?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(group_limit(Path::new("/sys/fs/cgroup"), &groups).unwrap_or(u64::MAX).min(kib * 1024))
}

/// Bytes that registering memory may pin, or `None` if nothing bounds them.
///
/// Only a network adapter pins; without one, NIXL moves pixels by shared memory or TCP, and RLIMIT_MEMLOCK (8 MiB for
/// users, by default) says nothing.
pub fn lockable_bytes() -> Option<u64> {
    let has_adapter = fs::read_dir("/sys/class/infiniband").is_ok_and(|mut entries| entries.next().is_some());
    if !has_adapter || may_lock_anything(&fs::read_to_string("/proc/self/status").unwrap_or_default()) {
        return None;
    }
    resource_limit(libc::RLIMIT_MEMLOCK).map(|limit| limit.rlim_cur).filter(|&bytes| bytes != libc::RLIM_INFINITY)
}

/// Lets the process have as many descriptors as it may. The limit that it starts with is often 1024, for the sake of
/// programs that use select(), and a request can take three.
pub fn raise_descriptors() {
    let Some(mut limit) = resource_limit(libc::RLIMIT_NOFILE) else { return };
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: a plain system call on a local struct. A refusal leaves the limit as it is.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
}

/// Descriptors that the process may have.
pub fn descriptors() -> usize {
    resource_limit(libc::RLIMIT_NOFILE)
        .map_or(usize::MAX, |limit| usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX))
}

fn resource_limit(resource: libc::__rlimit_resource_t) -> Option<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit writes the struct it is given and nothing else.
    (unsafe { libc::getrlimit(resource, &raw mut limit) } == 0).then_some(limit)
}

/// Whether the process has CAP_IPC_LOCK.
fn may_lock_anything(status: &str) -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> CAP_IPC_LOCK & 1 == 1)
}

/// The least of the limits of a process's control groups and of those above them. `groups` is its /proc/self/cgroup.
fn group_limit(root: &Path, groups: &str) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        // Version 2 has one group and names no controllers, version 1 has one for each.
        let (mount, file) = match controllers {
            "" => (root.to_path_buf(), "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => (root.join("memory"), "memory.limit_in_bytes"),
            _ => return None,
        };
        // In a container the path may be the host's, of which the mount shows the end only: then its root is ours.
        let own = mount.join(path.trim_start_matches('/'));
        let within = own.ancestors().take_while(|group| group.starts_with(&mount));
        // "max" is no number, and no limit.
        within.filter_map(|group| fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()).min()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_group_on_the_way_up_counts() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("a/b");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("memory.max"), "max\n").unwrap();
        fs::write(root.path().join("a/memory.max"), "1000\n").unwrap();
        fs::write(root.path().join("memory.max"), "2000\n").unwrap();
        assert_eq!(group_limit(root.path(), "0::/a/b\n"), Some(1000));
        assert_eq!(group_limit(root.path(), "0::/\n"), Some(2000));
        assert_eq!(group_limit(root.path(), "0::/not/seen/from/here\n"), Some(2000));
        assert_eq!(group_limit(root.path(), ""), None);
    }

    #[test]
    fn the_first_version_of_groups_is_read_too() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("memory/pod")).unwrap();
        fs::write(root.path().join("memory/pod/memory.limit_in_bytes"), "3000\n").unwrap();
        assert_eq!(group_limit(root.path(), "5:cpu,cpuacct:/pod\n4:memory:/pod\n"), Some(3000));
    }

    #[test]
    fn a_capability_lifts_the_limit_on_locking() {
        assert!(may_lock_anything("Name:\tx\nCapEff:\t0000000000004000\n"));
        assert!(!may_lock_anything("Name:\tx\nCapEff:\t0000000000000000\n"));
        assert!(!may_lock_anything(""));
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(memory_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}

//! By which lane pixels reach a worker, as far as it can be seen from outside.
//!
//! UCX chooses the lane and NIXL does not tell which, so it is told from what happens:
//!
//! - The bytes went through TCP sockets of this process, or they did not: the kernel counts what each socket has sent.
//! - What does not go over TCP to the same machine is copied from memory to memory: by `process_vm_writev` (CMA), or
//!   through memory that both map, which takes a kernel module (XPMEM, KNEM).
//! - What does not go over TCP to another machine is RDMA.
//!
//! Two processes of one machine to which the kernel denies CMA get TCP, and UCX says nothing. [`Whereabouts::obstacle`]
//! says what it is that they lack.

use std::{collections::HashMap, fmt, os::fd::RawFd, path::Path};

use serde::Deserialize;

use super::mac::Key;

/// See the module's documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// The kernel copies from one process to the other.
    Cma,
    /// Both processes map the same memory.
    SharedMemory,
    Rdma,
    Tcp,
}

impl Lane {
    pub const ALL: [Lane; 4] = [Lane::Cma, Lane::SharedMemory, Lane::Rdma, Lane::Tcp];

    /// The metric's label and the log's word.
    pub fn name(self) -> &'static str {
        match self {
            Lane::Cma => "cma",
            Lane::SharedMemory => "shared_memory",
            Lane::Rdma => "rdma",
            Lane::Tcp => "tcp",
        }
    }

    /// Whether two WRITEs are seen in the order in which they were posted. The kernel copies one after the other, under locks that
    /// order memory, and a TCP connection is a stream. Memory that is mapped is written by plain stores of one thread, which x86-64
    /// keeps in order and others need not. RDMA may send by several paths.
    pub fn keeps_order(self) -> bool {
        match self {
            Lane::Cma | Lane::Tcp => true,
            Lane::SharedMemory => cfg!(target_arch = "x86_64"),
            Lane::Rdma => false,
        }
    }

    /// The lane of a transfer of `bytes` bytes, of which `over_tcp` left through sockets of this process.
    pub fn of(bytes: u64, over_tcp: u64, same_machine: bool) -> Self {
        // Control messages go over TCP on every lane, and are small.
        if over_tcp >= bytes / 2 {
            return Lane::Tcp;
        }
        let mapped = ["/dev/xpmem", "/dev/knem"].iter().any(|device| Path::new(device).exists());
        match (same_machine, mapped) {
            (true, true) => Lane::SharedMemory,
            (true, false) => Lane::Cma,
            (false, _) => Lane::Rdma,
        }
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a lander runs; what it says of it on attach.
#[derive(Debug, Clone, Deserialize)]
pub struct Whereabouts {
    /// Names the machine, as a MAC that only who has the grant's key can make of the same boot id.
    host: String,
    pid_namespace: u64,
    pid: i32,
    uid: u32,
}

impl Whereabouts {
    /// Whether it is on this machine, whatever container it is in.
    pub fn is_here(&self, grant_key: &Key) -> bool {
        // Without a boot id nothing is known to be here.
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .is_ok_and(|boot_id| grant_key.verify("mediagate host v1", &[boot_id.trim().as_bytes()], &self.host))
    }

    /// Of a lander on this machine: why this process may not write into its memory, and what an operator can do. `address`
    /// is one of its memory's.
    pub fn obstacle(&self, address: u64) -> String {
        // SAFETY: takes no arguments and cannot fail.
        let ours = unsafe { libc::geteuid() };
        if pid_namespace().is_some_and(|ours| ours != self.pid_namespace) {
            return "gateway and worker are in different PID namespaces: share one (docker run --pid=host or \
                    --pid=container:NAME, Kubernetes shareProcessNamespace or hostPID)"
                .into();
        }
        if ours != self.uid {
            return format!("the gateway runs as user {ours}, the worker as {}: run both as one user", self.uid);
        }
        match read_one_byte(self.pid, address) {
            Ok(()) => "the kernel would allow CMA, so UCX was told not to use it: look at UCX_TLS on both sides".into(),
            Err(error) => format!(
                "the kernel does not let the gateway reach the worker's memory ({error}): give both CAP_SYS_PTRACE (docker \
                 run --cap-add SYS_PTRACE), or set the sysctl kernel.yama.ptrace_scope to 0"
            ),
        }
    }
}

/// The inode that names the PID namespace of this process.
fn pid_namespace() -> Option<u64> {
    let metadata = std::fs::metadata("/proc/self/ns/pid").ok()?;
    Some(std::os::unix::fs::MetadataExt::ino(&metadata))
}

/// Asks the kernel for what CMA would ask it for.
fn read_one_byte(pid: i32, address: u64) -> std::io::Result<()> {
    let mut byte = 0_u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: 1 };
    // SAFETY: one byte is written, into `byte`; the remote address is the kernel's to check.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    if read == 1 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// What each TCP socket of this process has sent so far, in bytes.
#[derive(Debug, Default)]
pub struct SentOverTcp(HashMap<RawFd, u64>);

impl SentOverTcp {
    pub fn now() -> Self {
        let descriptors = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let descriptors = descriptors.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        SentOverTcp(descriptors.filter_map(|fd| Some((fd, bytes_sent(fd)?))).collect())
    }

    /// Bytes that were sent between `earlier` and this, on sockets that were open at both times.
    pub fn since(&self, earlier: &SentOverTcp) -> u64 {
        let increases = self.0.iter().filter_map(|(fd, sent)| Some(sent.saturating_sub(*earlier.0.get(fd)?)));
        increases.sum()
    }
}

/// What a socket has sent, acknowledged or not; `None` for what is no TCP socket (and on kernels before 4.19).
fn bytes_sent(fd: RawFd) -> Option<u64> {
    /// Of `tcpi_bytes_sent` in the kernel's struct tcp_info (include/uapi/linux/tcp.h), whose layout only grows.
    const AT: usize = 200;
    let mut info = [0_u8; AT + size_of::<u64>()];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes; a descriptor that is closed or no TCP socket is an error.
    let result =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut length) };
    if result != 0 || (length as usize) < info.len() {
        return None;
    }
    info[AT..].try_into().ok().map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    #[test]
    fn what_went_through_sockets_is_tcp_and_what_did_not_is_told_by_where_the_peer_is() {
        let bytes = 1 << 20;
        for here in [true, false] {
            assert_eq!(Lane::of(bytes, bytes + 400, here), Lane::Tcp);
        }
        assert!(matches!(Lane::of(bytes, 400, true), Lane::Cma | Lane::SharedMemory));
        assert_eq!(Lane::of(bytes, 400, false), Lane::Rdma);
    }

    #[test]
    fn only_where_writes_cannot_overtake_each_other_do_marks_go_with_their_pixels() {
        assert!(Lane::Cma.keeps_order() && Lane::Tcp.keeps_order());
        assert!(!Lane::Rdma.keeps_order());
        assert_eq!(Lane::SharedMemory.keeps_order(), cfg!(target_arch = "x86_64"));
    }

    #[test]
    fn bytes_that_a_socket_sends_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let before = SentOverTcp::now();
        let reader = std::thread::spawn(move || {
            let mut all = vec![0; 1 << 20];
            server.read_exact(&mut all).unwrap();
            server
        });
        client.write_all(&vec![1; 1 << 20]).unwrap();
        let _server = reader.join().unwrap();
        assert!(SentOverTcp::now().since(&before) >= 1 << 20);
    }

    #[test]
    fn a_neighbour_is_known_by_the_boot_id_and_what_it_lacks_is_said() {
        let key = Key::of_secret(b"");
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        // SAFETY: takes no arguments and cannot fail.
        let uid = unsafe { libc::geteuid() };
        let pid = i32::try_from(std::process::id()).unwrap();
        let byte = 7_u8;
        let address = (&raw const byte) as u64;
        let here = Whereabouts {
            host: key.mac("mediagate host v1", &[boot_id.trim().as_bytes()]),
            pid_namespace: pid_namespace().unwrap(),
            pid,
            uid,
        };
        assert!(here.is_here(&key));
        assert!(!here.is_here(&Key::of_secret(b"0123456789abcdef")), "to strangers the machine has no name");
        assert!(here.obstacle(address).contains("UCX_TLS"));
        assert!(here.obstacle(1).contains("CAP_SYS_PTRACE"), "an address that is none stands in for a refusal");
        let elsewhere = Whereabouts { pid_namespace: 1, ..here.clone() };
        assert!(elsewhere.obstacle(address).contains("PID namespaces"));
        let other = Whereabouts { uid: uid + 1, ..here };
        assert!(other.obstacle(address).contains("one user"));
    }
}

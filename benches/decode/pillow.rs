//! A Python that decodes on request, with Pillow, as vLLM does.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

pub struct Pillow {
    python: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
}

impl Pillow {
    /// The Python of `PILLOW_PYTHON`, or that of `.venv`; `None` where it has no Pillow.
    pub fn start() -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let python = env::var_os("PILLOW_PYTHON").map_or_else(|| root.join(".venv/bin/python"), Into::into);
        let version = Command::new(&python).args(["-c", "import PIL; print(PIL.__version__)"]).output().ok()?;
        if !version.status.success() {
            return None;
        }
        eprintln!("Pillow {}", String::from_utf8_lossy(&version.stdout).trim());
        let mut python = Command::new(python)
            .arg(root.join("benches/decode/pillow.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let requests = python.stdin.take()?;
        let answers = BufReader::new(python.stdout.take()?);
        Some(Self { python, requests, answers, folder: tempfile::tempdir().ok()? })
    }

    /// Decodes `file` so many times from now on.
    pub fn open(&mut self, file: &[u8]) {
        let path = self.folder.path().join("picture");
        std::fs::write(&path, file).expect("a temporary file");
        writeln!(self.requests, "open {}", path.display()).expect("Python reads");
    }

    /// Decodes the open file; the time of its thread, or of the clock on the wall.
    pub fn decode(&mut self, times: u64) -> Taken {
        writeln!(self.requests, "decode {times}").expect("Python reads");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("Python answers");
        let mut nanoseconds = answer.split_whitespace().map(|number| number.parse().expect("nanoseconds"));
        let mut next = || Duration::from_nanos(nanoseconds.next().expect("two numbers"));
        Taken { wall: next(), thread: next() }
    }
}

pub struct Taken {
    pub wall: Duration,
    pub thread: Duration,
}

impl Drop for Pillow {
    fn drop(&mut self) {
        let _ = self.python.kill();
        let _ = self.python.wait();
    }
}

//! The Python stand-in: a worker with the real landing code and real NIXL.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

use serde_json::Value;

use super::{
    gateway::{Gateway, Log},
    kept_address,
    pictures::Pixels,
};

/// A Python with all that the stand-in needs, and where it keeps its packages.
struct Python {
    program: PathBuf,
    prefix: PathBuf,
}

pub struct Standin {
    child: Child,
    pub address: SocketAddr,
    flags: Vec<String>,
    pub log: Log,
}

impl Standin {
    /// Starts one with these flags; `None`, with a word of why, where there is no Python for it.
    pub async fn start(flags: &[&str]) -> Option<Self> {
        let flags = flags.iter().map(|flag| flag.to_string()).collect();
        let standin = Self::spawn(&kept_address().to_string(), flags, python()?).await;
        if !standin.flags.iter().any(|flag| flag == "--no-nixl") {
            standin.log.wait_for("of landing memory up").await;
        }
        Some(standin)
    }

    async fn spawn(listen: &str, flags: Vec<String>, python: &Python) -> Self {
        let mut command = Command::new(&python.program);
        // A little memory is there sooner; flags that are given go before.
        command.args(["-m", "mediagate_vllm.standin", "--listen", listen, "--landing-bytes", "67108864"]).args(&flags);
        command.env("PYTHONPATH", repository().join("python"));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Log::read(child.stderr.take().unwrap());
        let line = log.wait_for("Uvicorn running on http://").await;
        let address = line.split("http://").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
        Standin { child, address: address.parse().unwrap(), flags, log }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Kills it as a crash would, lander and all.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The process that serves HTTP.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// The process that owns its landing memory.
    pub fn lander(&self) -> i32 {
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = std::fs::read_to_string(children).unwrap();
        let is_lander = |pid: &&str| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.starts_with("mediagate-land"))
        };
        children.split_whitespace().find(is_lander).expect("a lander").parse().unwrap()
    }

    /// Starts it again on the same address, another incarnation.
    pub async fn restart(&mut self) {
        self.kill();
        let listen = self.address.to_string();
        let python = python().expect("it ran before");
        *self = Self::spawn(&listen, self.flags.clone(), python).await;
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of the stand-in\n{}---", self.log.text());
        }
    }
}

impl Gateway {
    /// Decodes, and pushes over NIXL; attached to the worker already.
    pub async fn pushing(worker: &Standin, flags: &[&str]) -> Self {
        let gateway = Self::with_nixl(worker, flags).await;
        gateway.log.wait_for(" attached ").await;
        gateway
    }

    /// As [`Self::pushing`], but for the attachment.
    pub async fn with_nixl(worker: &Standin, flags: &[&str]) -> Self {
        Self::with_nixl_at(&worker.url(), flags).await
    }

    /// As [`Self::with_nixl`], with a worker of any kind.
    pub async fn with_nixl_at(worker: &str, flags: &[&str]) -> Self {
        Self::with_nixl_and(worker, flags, &[]).await
    }

    /// As [`Self::with_nixl_at`], with these variables set.
    pub async fn with_nixl_and(worker: &str, flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let libraries = nixl_libraries().expect("the stand-in runs, so NIXL is beside its package");
        let own = ["--worker", worker, "--frontend-decoding", "--nixl-lib-dir", libraries.to_str().unwrap()];
        Self::start(&[&own[..], flags].concat(), variables).await.ready().await
    }
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn python() -> Option<&'static Python> {
    static FOUND: OnceLock<Option<Python>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let program = match std::env::var_os("MEDIAGATE_TEST_PYTHON") {
            Some(named) => named.into(),
            None => repository().join(".venv/bin/python"),
        };
        let check = "import sys, fastapi, uvicorn, numpy; from mediagate_vllm.agent import bindings; bindings(); print(sys.prefix)";
        let output = Command::new(&program).args(["-c", check]).env("PYTHONPATH", repository().join("python")).output();
        let output = output.ok().filter(|output| output.status.success())?;
        Some(Python { program, prefix: String::from_utf8(output.stdout).ok()?.trim().into() })
    });
    if found.is_none() {
        eprintln!("skipped: no Python with NIXL and the stand-in's packages (MEDIAGATE_TEST_PYTHON, .venv)");
    }
    found.as_ref()
}

/// Where the wheel keeps libnixl_capi.so; `None` where there is no Python for the stand-in.
pub fn nixl_libraries() -> Option<PathBuf> {
    let versions = std::fs::read_dir(python()?.prefix.join("lib")).ok()?.flatten();
    let packages = versions.filter_map(|version| std::fs::read_dir(version.path().join("site-packages")).ok());
    packages.flatten().flatten().map(|package| package.path()).find(|path| path.join("libnixl_capi.so").is_file())
}

/// What the stand-in saw of one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sight {
    pub pixels: Pixels,
    pub transfer: String,
}

/// What the stand-in says it saw.
pub fn sights(answer: &Value) -> Vec<Sight> {
    let content =
        answer["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("no sights in {answer}"));
    sights_in(content)
}

/// What the text of an answer of the stand-in says it saw.
pub fn sights_in(text: &str) -> Vec<Sight> {
    let content: Value = serde_json::from_str(text).unwrap();
    let sight = |image: &Value| {
        let number = |key: &str| u32::try_from(image[key].as_u64().unwrap()).unwrap();
        let text = |key: &str| image[key].as_str().unwrap().to_owned();
        let pixels = Pixels { height: number("height"), width: number("width"), rgb_sha256: text("rgb_sha256") };
        Sight { pixels, transfer: text("transfer") }
    };
    content["images"].as_array().unwrap().iter().map(sight).collect()
}

//! Reads the configuration again when one of its files has changed, as SIGHUP does.
//!
//! The files are looked at again and again rather than listened to: that sees network file systems, and Kubernetes'
//! ConfigMaps and Secrets, which change by a symbolic link that is swapped somewhere along the path. A file that is being
//! written is let be until it is the same at two looks.

use std::{
    fs::Metadata,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::time::{MissedTickBehavior, interval};

use super::app::App;

/// Looks at the files every `period`, for as long as the gateway runs. `before` is how they were when they were read.
pub async fn watch(app: App, files: Arc<[PathBuf]>, before: Looks, period: Duration) {
    let mut looking = interval(period);
    looking.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut changes = Changes { used: before.clone(), last: before };
    loop {
        looking.tick().await;
        let files = files.clone();
        // A file system may be slow, or hang.
        let Ok(looks) = tokio::task::spawn_blocking(move || Looks::at(&files)).await else { continue };
        if changes.settled(looks) {
            tracing::info!("a file of the configuration has changed");
            // Said in the log, whatever comes of it.
            let _ = app.reload().await;
        }
    }
}

/// What tells whether files are still the ones that they were.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Looks(Vec<Option<Look>>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Look {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Looks {
    /// How these files are now.
    pub fn at(files: &[PathBuf]) -> Self {
        Looks(files.iter().map(|path| Look::at(path)).collect())
    }
}

impl Look {
    /// Of the file to which links lead; `None` if there is none.
    fn at(path: &Path) -> Option<Self> {
        let of = |file: Metadata| Look {
            device: file.dev(),
            inode: file.ino(),
            bytes: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        };
        std::fs::metadata(path).ok().map(of)
    }
}

/// Tells a change that is over from one under way.
struct Changes {
    /// As they were when they were last read.
    used: Looks,
    last: Looks,
}

impl Changes {
    /// Whether they are other ones than those in use, and were the same the last time.
    fn settled(&mut self, looks: Looks) -> bool {
        let settled = looks == self.last && looks != self.used;
        if settled {
            self.used = looks.clone();
        }
        self.last = looks;
        settled
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(path: &Path, text: &str) {
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn a_change_is_told_once_and_when_it_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let files = [dir.path().join("workers")];
        write(&files[0], "a");
        let begin = Looks::at(&files);
        let mut changes = Changes { used: begin.clone(), last: begin };
        assert!(!changes.settled(Looks::at(&files)));
        for text in ["ab", "abc"] {
            write(&files[0], text);
            assert!(!changes.settled(Looks::at(&files)), "it may still be written");
        }
        assert!(changes.settled(Looks::at(&files)));
        assert!(!changes.settled(Looks::at(&files)));
    }

    #[test]
    fn a_link_that_is_swapped_a_file_that_is_replaced_and_one_that_goes_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (folder, text) in [("one", "x"), ("two", "y")] {
            std::fs::create_dir(at(folder)).unwrap();
            write(&at(folder).join("keys"), text);
        }
        symlink("one", at("..data")).unwrap();
        symlink("..data/keys", at("keys")).unwrap();
        let files = [at("keys")];
        let mut before = Looks::at(&files);
        let mut differs = || {
            let now = Looks::at(&files);
            now != std::mem::replace(&mut before, now.clone())
        };
        assert!(!differs());
        symlink("two", at("..new")).unwrap();
        std::fs::rename(at("..new"), at("..data")).unwrap();
        assert!(differs());
        write(&at("z"), "y");
        std::fs::rename(at("z"), at("two").join("keys")).unwrap();
        assert!(differs());
        std::fs::remove_file(at("two").join("keys")).unwrap();
        assert!(differs());
        assert!(!differs());
    }
}

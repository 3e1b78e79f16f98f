//! Finds libnixl_capi.so and loads it.
//!
//! mediagate is built against nixl-sys' stub, which looks NIXL up when it is first called, and aborts the process if it
//! is not there. So the library is loaded here by absolute path and globally first (the stub's own look-up by name then
//! finds it loaded), and nothing else of nixl-sys is called before `is_stub()` said that it was found.

use std::{
    ffi::{CStr, CString},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::Command,
};

const LIBRARY: &str = "libnixl_capi.so";

#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    #[error("no {LIBRARY} in {0}, which --nixl-lib-dir (MEDIAGATE_NIXL_LIB_DIR) names")]
    NotInDir(PathBuf),
    #[error(
        "{LIBRARY} not found: not in the active virtual environment, not beside python3, not on the loader's path; \
         `pip install --no-deps nixl-cu12` or --nixl-lib-dir DIR"
    )]
    NotFound,
    #[error("{path} cannot be loaded: {reason}")]
    Unloadable { path: PathBuf, reason: String },
}

/// Proof that NIXL is loaded; what may abort without it takes this.
#[derive(Debug, Clone)]
pub struct NixlLibrary {
    path: PathBuf,
}

impl NixlLibrary {
    /// Loads NIXL from `dir` if given, else from where it usually is.
    pub fn load(dir: Option<&Path>) -> Result<Self, LibraryError> {
        let candidates = match dir {
            Some(dir) => {
                let path = dir.join(LIBRARY);
                if !path.is_file() {
                    return Err(LibraryError::NotInDir(dir.to_owned()));
                }
                vec![path]
            }
            None => usual_places(),
        };
        if let Some(path) = candidates.into_iter().next() {
            let path = path.canonicalize().unwrap_or(path);
            open_globally(&path).map_err(|reason| LibraryError::Unloadable { path: path.clone(), reason })?;
            return if nixl_sys::is_stub() {
                Err(LibraryError::Unloadable { path, reason: "its symbols were not found".into() })
            } else {
                Ok(NixlLibrary { path })
            };
        }
        // The loader's own path (LD_LIBRARY_PATH, /etc/ld.so.conf) is where the stub looks by itself.
        if nixl_sys::is_stub() { Err(LibraryError::NotFound) } else { Ok(NixlLibrary { path: LIBRARY.into() }) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The wheels `nixl-cu12` and `nixl-cu13` keep their libraries in `.nixl_cuNN.mesonpy.libs` beside the package.
fn usual_places() -> Vec<PathBuf> {
    let mut site_packages = Vec::new();
    if let Some(environment) = std::env::var_os("VIRTUAL_ENV") {
        let lib = Path::new(&environment).join("lib");
        let versions = std::fs::read_dir(lib).into_iter().flatten().flatten();
        site_packages.extend(versions.map(|version| version.path().join("site-packages")));
    }
    let ask = "import sysconfig; print(sysconfig.get_paths()['platlib'])";
    if let Ok(output) = Command::new("python3").args(["-c", ask]).output()
        && output.status.success()
    {
        site_packages.push(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    }
    let mut found = Vec::new();
    for dir in site_packages {
        let packages = std::fs::read_dir(dir).into_iter().flatten().flatten();
        found.extend(packages.filter_map(|package| {
            let name = package.file_name();
            let name = name.to_str()?;
            let is_nixl = name.starts_with(".nixl") && name.ends_with(".mesonpy.libs");
            Some(package.path().join(LIBRARY)).filter(|path| is_nixl && path.is_file())
        }));
    }
    found
}

fn open_globally(path: &Path) -> Result<(), String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| "its path has a NUL byte".to_owned())?;
    // SAFETY: the name is a C string; running the library's initialisers is what loading it is for.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if !handle.is_null() {
        return Ok(());
    }
    // SAFETY: dlerror gives null or a C string that lives until the next dl call of this thread.
    let reason = unsafe {
        let text = libc::dlerror();
        if text.is_null() { "unknown".into() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    };
    Err(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_the_library_is_named_in_the_error() {
        let dir = tempfile::tempdir().unwrap();
        let error = NixlLibrary::load(Some(dir.path())).unwrap_err();
        assert!(error.to_string().contains(dir.path().to_str().unwrap()), "{error}");
    }

    #[test]
    fn a_file_that_is_no_library_is_an_error_and_not_an_abort() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(LIBRARY), b"not a library").unwrap();
        assert!(matches!(NixlLibrary::load(Some(dir.path())), Err(LibraryError::Unloadable { .. })));
    }
}

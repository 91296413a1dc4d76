//! Arbitrary bytes as a GGUF file.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, process};

use turnwire_core::profile::Options;
use turnwire_core::{ErrorKind, Profile};

/// # Panics
/// Where loading fails with anything but a reason that names the file.
pub fn run(input: &[u8]) {
    let file = File::new(input);
    match Profile::load(&file.0, Options::default(), None) {
        Ok(profile) => {
            let _ = profile.fingerprint_hex();
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Profile, "{error:#}");
            assert!(!error.detail().is_empty());
        }
    }
}

/// A file of its own, in memory where the system has such a place, gone at the end.
struct File(PathBuf);

impl File {
    fn new(bytes: &[u8]) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.to_owned() } else { env::temp_dir() };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let file = Self(folder.join(format!("turnwire-fuzz-{}-{number}.gguf", process::id())));
        fs::write(&file.0, bytes).expect("a file can be written");
        file
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

//! Model folders that tests make.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, process};

use serde_json::Value;

/// A folder of its own, gone at the end of the test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(files: &[(&str, Value)]) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name =
            format!("turnwire-hf-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = Self(env::temp_dir().join(name));
        fs::create_dir_all(&folder.0).unwrap();
        for (file, value) in files {
            // A string is the file's text; anything else is JSON.
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            fs::write(folder.0.join(file), text).unwrap();
        }
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

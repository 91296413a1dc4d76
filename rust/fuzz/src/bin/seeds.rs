//! Writes a target's seeds into a folder: `seeds TARGET FOLDER`.

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [target, folder] = arguments.as_slice() else { return ExitCode::FAILURE };
    let seeds = turnwire_fuzz::seeds::of(target);
    if seeds.is_empty() || fs::create_dir_all(folder).is_err() {
        return ExitCode::FAILURE;
    }
    let written =
        |(number, seed)| fs::write(Path::new(folder).join(format!("seed-{number}")), seed);
    if seeds.into_iter().enumerate().all(|seed| written(seed).is_ok()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

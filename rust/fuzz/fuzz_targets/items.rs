//! The target `items` under libFuzzer.

#![no_main]

// libFuzzer's own hook would end the process at panics that the core means to survive.
libfuzzer_sys::fuzz_target!(
    init: drop(std::panic::take_hook()),
    |input: &[u8]| turnwire_fuzz::items::run(input)
);

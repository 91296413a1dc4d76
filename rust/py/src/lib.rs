//! The wall: a contents page. Every name that Python sees is listed here; what it does stands in
//! `turnwire-core`, and how it is used in `python/turnwire/_core.pyi`.

mod buffer;
mod chains;
mod error;
mod profile;
mod turn;

/// The native core: items to tokens and back.
#[pyo3::pymodule(gil_used = false)]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::buffer::TokenBuffer;
    #[pymodule_export]
    use crate::chains::{Chains, Node};
    #[pymodule_export]
    use crate::profile::Profile;
    #[pymodule_export]
    use crate::turn::{Delta, Span, Turn};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

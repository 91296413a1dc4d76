//! The one door from Rust to Python: the core's errors as the classes of `turnwire.errors`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyType};
use turnwire_core::{Error, ErrorKind};

/// The class that says the same.
fn class_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidValue => "InvalidValueError",
        ErrorKind::MissingParameter => "MissingParameterError",
        ErrorKind::Unsupported => "UnsupportedParameterError",
        ErrorKind::Unpaired => "UnpairedCallError",
        ErrorKind::Profile => "ProfileError",
        // A kind that the wall does not know yet is a bug of the wall.
        _ => "InvariantError",
    }
}

/// The core's error, raised as its class.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    build(py, class_name(error.kind()), &format!("{error:#}"), error.param())
        .unwrap_or_else(|failure| failure)
}

/// An `InvariantError`.
pub(crate) fn invariant(py: Python<'_>, detail: &str) -> PyErr {
    build(py, "InvariantError", detail, None).unwrap_or_else(|failure| failure)
}

fn build(py: Python<'_>, class: &str, message: &str, param: Option<&str>) -> PyResult<PyErr> {
    let class = py.import("turnwire.errors")?.getattr(class)?.cast_into::<PyType>()?;
    let kwargs = [("param", param)].into_py_dict(py)?;
    Ok(PyErr::from_value(class.call((message,), Some(&kwargs))?))
}

/// Runs `work`; a panic in it becomes the core's invariant error instead of unwinding into Python.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let said = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Error::invariant(format!("the core panicked: {}", said.unwrap_or("no message"))))
    })
}

/// [`caught`], with the GIL released: for whatever can take longer than 50 µs.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> PyResult<T> {
    py.detach(|| caught(work)).map_err(|error| raise(py, &error))
}

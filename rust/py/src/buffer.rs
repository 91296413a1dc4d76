//! Token ids as Python's buffer protocol lends memory. The only `unsafe` of the project.

use std::ffi::{c_int, c_void};
use std::ptr;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use turnwire_core::View;

/// An immutable view of token ids: u32, contiguous, format `I`.
#[pyclass(frozen, module = "turnwire._core")]
pub(crate) struct TokenBuffer {
    view: View,
    /// The shape array that every export points to.
    len: [ffi::Py_ssize_t; 1],
}

/// The stride array: four bytes a token.
static STRIDES: [ffi::Py_ssize_t; 1] = [4];

impl TokenBuffer {
    pub(crate) fn new(view: View) -> Self {
        let len = [ffi::Py_ssize_t::try_from(view.len()).unwrap_or(ffi::Py_ssize_t::MAX)];
        Self { view, len }
    }
}

#[pymethods]
impl TokenBuffer {
    fn __len__(&self) -> usize {
        self.view.len()
    }

    fn __repr__(&self) -> String {
        format!("<TokenBuffer of {} tokens>", self.view.len())
    }

    fn tolist(&self) -> Vec<u32> {
        self.view.to_vec()
    }

    /// # Safety
    /// Called by CPython with a valid `view` to fill, as the buffer protocol says.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
            return Err(PyBufferError::new_err("token ids cannot be written"));
        }
        let this = slf.get();
        let asked = |flag: c_int| flags & flag == flag;
        let strided = asked(ffi::PyBUF_STRIDES);
        let shaped = asked(ffi::PyBUF_ND);
        let formatted = asked(ffi::PyBUF_FORMAT);
        // SAFETY: `view` is not null and ours to fill. The memory lives as long as `obj`, which the
        // view keeps alive, and is not written to while it is lent: a tape copies before it would
        // change a viewed token (turnwire_core::chain::Tape). `AtomicU32` has the size and bit
        // validity of `u32`. The shape lies in the same object; the strides and the format are
        // static. CPython never writes through them for a read-only view.
        unsafe {
            (*view).buf = this.view.as_atomics().as_ptr().cast::<c_void>().cast_mut();
            (*view).len = this.len[0] * 4;
            (*view).itemsize = 4;
            (*view).readonly = 1;
            (*view).ndim = 1;
            (*view).format = if formatted { c"I".as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).shape = if shaped { this.len.as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).strides = if strided { STRIDES.as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = ptr::null_mut();
            (*view).obj = slf.into_ptr();
        }
        Ok(())
    }
}

/// Token ids from a buffer of u32, or from any sequence of integers.
pub(crate) fn ids(value: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    if let Ok(buffer) = PyBuffer::<u32>::get(value) {
        return buffer.to_vec(value.py());
    }
    value.extract()
}

/// Raw bytes (JSON) from anything with the buffer protocol.
pub(crate) fn bytes(value: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    PyBuffer::<u8>::get(value)?.to_vec(value.py())
}

//! `Turn`: a response in the making, and what it hands out.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyBytes;
use turnwire_core::{Constraint, Error, ErrorKind};

use crate::buffer::{self, TokenBuffer};
use crate::chains::Node;
use crate::error::{caught, invariant, raise};

/// From so many ids on, a push releases the GIL: each costs up to a microsecond.
const LONG_PUSH: usize = 32;

#[pyclass(frozen, module = "turnwire._core")]
pub(crate) struct Span(pub(crate) turnwire_core::Span);

#[pymethods]
impl Span {
    #[getter]
    fn start(&self) -> usize {
        self.0.tokens.start
    }

    #[getter]
    fn end(&self) -> usize {
        self.0.tokens.end
    }

    #[getter]
    fn items(&self) -> (usize, usize) {
        (self.0.items.start, self.0.items.end)
    }

    #[getter]
    fn kind(&self) -> &'static str {
        self.0.kind.as_str()
    }

    #[getter]
    fn origin(&self) -> &'static str {
        self.0.origin.as_str()
    }

    fn __repr__(&self) -> String {
        let (kind, tokens) = (self.kind(), &self.0.tokens);
        format!("<Span {kind} {}..{} {}>", tokens.start, tokens.end, self.origin())
    }
}

#[pyclass(frozen, module = "turnwire._core")]
pub(crate) struct Delta(turnwire_core::Delta);

#[pymethods]
impl Delta {
    #[getter]
    fn kind(&self) -> &'static str {
        match self.0 {
            turnwire_core::Delta::Reasoning(_) => "reasoning",
            turnwire_core::Delta::Text(_) => "text",
            turnwire_core::Delta::Call { .. } => "call",
            turnwire_core::Delta::Arguments(_) => "arguments",
        }
    }

    #[getter]
    fn text(&self) -> &str {
        match &self.0 {
            turnwire_core::Delta::Reasoning(text)
            | turnwire_core::Delta::Text(text)
            | turnwire_core::Delta::Arguments(text) => text,
            turnwire_core::Delta::Call { .. } => "",
        }
    }

    #[getter]
    fn call_id(&self) -> &str {
        match &self.0 {
            turnwire_core::Delta::Call { call_id, .. } => call_id,
            _ => "",
        }
    }

    #[getter]
    fn name(&self) -> &str {
        match &self.0 {
            turnwire_core::Delta::Call { name, .. } => name,
            _ => "",
        }
    }

    fn __repr__(&self) -> String {
        format!("<Delta {:?}>", self.0)
    }
}

#[pyclass(frozen, module = "turnwire._core")]
pub(crate) struct ToolCallConstraint(Constraint);

#[pymethods]
impl ToolCallConstraint {
    #[getter]
    fn open(&self) -> &str {
        &self.0.open
    }

    #[getter]
    fn close(&self) -> &str {
        &self.0.close
    }

    #[getter]
    fn tools<'py>(&self, py: Python<'py>) -> Vec<(&str, Bound<'py, PyBytes>)> {
        let tools = self.0.tools.iter();
        tools.map(|(name, schema)| (name.as_str(), PyBytes::new(py, schema.as_bytes()))).collect()
    }

    #[getter]
    fn many(&self) -> bool {
        self.0.many
    }
}

/// A turn, or the law that it broke.
struct Owned {
    turn: turnwire_core::Turn,
    broken: Option<String>,
}

#[pyclass(frozen, module = "turnwire._core")]
pub(crate) struct Turn {
    owned: Mutex<Owned>,
    open_micros: u64,
}

impl Turn {
    pub(crate) fn new(turn: turnwire_core::Turn, open: Duration) -> Self {
        let open_micros = u64::try_from(open.as_micros()).unwrap_or(u64::MAX);
        Self { owned: Mutex::new(Owned { turn, broken: None }), open_micros }
    }

    /// Runs `work` on the turn; once a law is broken, every call answers with that.
    fn with<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut turnwire_core::Turn) -> Result<T, Error>,
    ) -> PyResult<T> {
        // Waits without the GIL, which a long push in another thread will want back.
        let mut owned = self.owned.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        if let Some(broken) = &owned.broken {
            return Err(invariant(py, broken));
        }
        caught(|| work(&mut owned.turn)).map_err(|error| {
            if error.kind() == ErrorKind::Invariant {
                owned.broken = Some(format!("{error:#}"));
            }
            raise(py, &error)
        })
    }

    fn read<T>(&self, py: Python<'_>, look: impl FnOnce(&turnwire_core::Turn) -> T) -> PyResult<T> {
        self.with(py, |turn| Ok(look(turn)))
    }
}

#[pymethods]
impl Turn {
    #[getter]
    fn kind(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.read(py, |turn| turn.kind().as_str())
    }

    #[getter]
    fn prefix_len(&self, py: Python<'_>) -> PyResult<usize> {
        self.read(py, turnwire_core::Turn::prefix_len)
    }

    #[getter]
    fn prompt(&self, py: Python<'_>) -> PyResult<TokenBuffer> {
        self.read(py, |turn| TokenBuffer::new(turn.prompt().clone()))
    }

    #[getter]
    fn rendered(&self, py: Python<'_>) -> PyResult<usize> {
        self.read(py, turnwire_core::Turn::rendered)
    }

    #[getter]
    fn known_items(&self, py: Python<'_>) -> PyResult<usize> {
        self.read(py, turnwire_core::Turn::known_items)
    }

    #[getter]
    fn open_micros(&self) -> u64 {
        self.open_micros
    }

    #[getter]
    fn constraint(&self, py: Python<'_>) -> PyResult<Option<ToolCallConstraint>> {
        self.read(py, |turn| turn.constraint().cloned().map(ToolCallConstraint))
    }

    #[getter]
    fn new_content(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.read(py, |turn| turn.items().iter().map(|item| item.text().to_owned()).collect())
    }

    #[getter]
    fn last_item(&self, py: Python<'_>) -> PyResult<Option<(&'static str, String, String)>> {
        self.read(py, |turn| {
            let (item, name) = turn.last_item()?;
            Some((item.type_name(), item.text().to_owned(), name))
        })
    }

    #[getter]
    fn echo_tools<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.read(py, |turn| PyBytes::new(py, turn.header().echo_tools.as_bytes()))
    }

    #[getter]
    fn echo_instructions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.read(py, |turn| PyBytes::new(py, turn.header().echo_instructions.as_bytes()))
    }

    #[getter]
    fn echo_tool_choice<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.read(py, |turn| PyBytes::new(py, turn.header().echo_tool_choice.as_bytes()))
    }

    fn push(&self, ids: &Bound<'_, PyAny>) -> PyResult<Vec<Delta>> {
        let py = ids.py();
        let ids = buffer::ids(ids)?;
        let mut deltas = Vec::new();
        if ids.len() < LONG_PUSH {
            self.with(py, |turn| turn.push(&ids, &mut deltas))?;
        } else {
            self.with(py, |turn| py.detach(|| turn.push(&ids, &mut deltas)))?;
        }
        Ok(deltas.into_iter().map(Delta).collect())
    }

    #[getter]
    fn stopped(&self, py: Python<'_>) -> PyResult<bool> {
        self.read(py, turnwire_core::Turn::stopped)
    }

    #[getter]
    fn sampled(&self, py: Python<'_>) -> PyResult<usize> {
        self.read(py, turnwire_core::Turn::sampled)
    }

    #[getter]
    fn reasoning_tokens(&self, py: Python<'_>) -> PyResult<usize> {
        self.read(py, turnwire_core::Turn::reasoning_tokens)
    }

    fn finish(&self, py: Python<'_>) -> PyResult<Vec<Delta>> {
        let mut deltas = Vec::new();
        self.with(py, |turn| turn.finish(&mut deltas))?;
        Ok(deltas.into_iter().map(Delta).collect())
    }

    fn commit(&self, py: Python<'_>) -> PyResult<Node> {
        self.with(py, turnwire_core::Turn::commit).map(Node)
    }

    fn abort(&self, py: Python<'_>) {
        // Also what ends a poisoned turn, so it never raises.
        let mut owned = self.owned.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let _ = caught(|| {
            owned.turn.abort();
            Ok(())
        });
    }

    fn spans(&self, py: Python<'_>) -> PyResult<Vec<Span>> {
        self.read(py, |turn| turn.spans().into_iter().map(Span).collect())
    }
}

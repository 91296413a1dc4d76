//! `Turn`: a response in the making, and what it hands out.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use turnwire_core::{Constraint, Error, ErrorKind, Told};

use crate::buffer::{self, TokenBuffer};
use crate::chains::Node;
use crate::error::{caught, invariant, raise};

/// From so many ids on, a push releases the GIL: each costs up to a microsecond.
const LONG_PUSH: usize = 32;

#[pyclass(frozen, get_all, module = "turnwire._core")]
pub(crate) struct Span {
    start: usize,
    end: usize,
    items: (usize, usize),
    kind: &'static str,
    origin: &'static str,
}

impl From<turnwire_core::Span> for Span {
    fn from(span: turnwire_core::Span) -> Self {
        Self {
            start: span.tokens.start,
            end: span.tokens.end,
            items: (span.items.start, span.items.end),
            kind: span.kind.as_str(),
            origin: span.origin.as_str(),
        }
    }
}

#[pymethods]
impl Span {
    fn __repr__(&self) -> String {
        format!("<Span {} {}..{} {}>", self.kind, self.start, self.end, self.origin)
    }
}

#[pyclass(frozen, get_all, module = "turnwire._core")]
#[derive(Default)]
pub(crate) struct Delta {
    kind: &'static str,
    text: String,
    call_id: String,
    name: String,
    namespace: Option<String>,
}

impl From<Told> for Delta {
    fn from(told: Told) -> Self {
        use Told::{Arguments, Call, Input, Query, Reasoning, Text};
        let kind = told.kind();
        match told {
            Reasoning(text) | Text(text) | Arguments(text) | Input(text) | Query(text) => {
                Self { kind, text, ..Self::default() }
            }
            Call { call_id, namespace, name, .. } => {
                Self { kind, call_id, name, namespace, ..Self::default() }
            }
        }
    }
}

#[pymethods]
impl Delta {
    fn __repr__(&self) -> String {
        format!("<Delta {} {:?} {:?} {:?}>", self.kind, self.text, self.call_id, self.name)
    }
}

/// The fields of `turnwire.engine.base.ToolCallConstraint`.
type ToolCallConstraint = (String, String, Vec<(String, Vec<u8>)>, bool);

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
    fn reencoded(&self, py: Python<'_>) -> PyResult<usize> {
        self.read(py, turnwire_core::Turn::reencoded)
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
        self.read(py, |turn| {
            let Constraint { open, close, tools, many } = turn.constraint().cloned()?;
            let tools = tools.into_iter().map(|(name, schema)| (name, schema.into_bytes()));
            Some((open, close, tools.collect(), many))
        })
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
    fn echo(&self, py: Python<'_>) -> PyResult<(Vec<u8>, Vec<u8>, Vec<u8>)> {
        let bytes = |json: &str| json.as_bytes().to_vec();
        self.read(py, |turn| turn.header().echo().map(bytes).into())
    }

    #[getter]
    fn may_think(&self, py: Python<'_>) -> PyResult<bool> {
        self.read(py, turnwire_core::Turn::may_think)
    }

    #[getter]
    fn may_call(&self, py: Python<'_>) -> PyResult<bool> {
        self.read(py, |turn| !turn.header().callable_tools().is_empty())
    }

    #[getter]
    fn left_out(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.read(py, |turn| turn.header().left_out.clone())
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
        Ok(deltas.into_iter().map(Delta::from).collect())
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
        Ok(deltas.into_iter().map(Delta::from).collect())
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
        self.read(py, |turn| turn.spans().into_iter().map(Span::from).collect())
    }
}

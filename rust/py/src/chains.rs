//! `Chains` opens turns; `Node` is a committed one.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use turnwire_core::chain::spans;
use turnwire_core::header::RawHeader;
use turnwire_core::{Budget, OpenRequest};

use crate::buffer::{self, TokenBuffer};
use crate::error::detached;
use crate::profile::Profile;
use crate::turn::{Span, Turn};

#[pyclass(frozen, module = "turnwire._core")]
pub(crate) struct Node(pub(crate) turnwire_core::Node);

#[pymethods]
impl Node {
    #[getter]
    fn token_count(&self) -> usize {
        self.0.token_count()
    }

    #[getter]
    fn item_count(&self) -> usize {
        self.0.item_count()
    }

    #[getter]
    fn item_types(&self) -> Vec<&'static str> {
        self.0.items(0..self.0.item_count()).iter().map(|item| item.type_name()).collect()
    }

    fn tokens(&self, py: Python<'_>) -> TokenBuffer {
        TokenBuffer::new(py.detach(|| self.0.view()))
    }

    fn export(&self, py: Python<'_>) -> PyResult<Cow<'static, [u8]>> {
        detached(py, || self.0.export()).map(Cow::Owned)
    }

    fn spans(&self) -> Vec<Span> {
        spans(self.0.lineage().segments()).into_iter().map(Span::from).collect()
    }
}

#[pyclass(frozen, module = "turnwire._core")]
pub(crate) struct Chains {
    chains: turnwire_core::Chains,
    profile: Py<Profile>,
}

#[pymethods]
impl Chains {
    #[new]
    #[pyo3(signature = (profile, *, budget_bytes = 1_073_741_824, ttl_seconds = 3600))]
    fn new(profile: &Bound<'_, Profile>, budget_bytes: usize, ttl_seconds: u64) -> Self {
        let budget = Budget { bytes: budget_bytes, ttl: Duration::from_secs(ttl_seconds) };
        let chains = turnwire_core::Chains::new(Arc::clone(&profile.get().0), budget);
        Self { chains, profile: profile.clone().unbind() }
    }

    #[getter]
    fn held_bytes(&self) -> usize {
        self.chains.index().meter().bytes()
    }

    #[getter]
    fn profile(&self, py: Python<'_>) -> Py<Profile> {
        self.profile.clone_ref(py)
    }

    fn hydrate(&self, py: Python<'_>, parent: Option<Py<Node>>, blob: &[u8]) -> PyResult<Node> {
        let parent = parent.map(|node| node.get().0.clone());
        detached(py, || self.chains.hydrate(parent.as_ref(), blob)).map(Node)
    }

    fn verify(&self, py: Python<'_>, node: &Bound<'_, Node>) -> PyResult<bool> {
        let node = node.get().0.clone();
        detached(py, || self.chains.verify(&node))
    }

    #[pyo3(signature = (
        parent, input, *, instructions = None, tools = None, tool_choice = None,
        parallel_tool_calls = true, effort = None, verbosity = None, generate = true,
        scope = None, now = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python signature")]
    fn open(
        &self,
        py: Python<'_>,
        parent: Option<&Bound<'_, Node>>,
        input: &Bound<'_, PyAny>,
        instructions: Option<&Bound<'_, PyAny>>,
        tools: Option<&Bound<'_, PyAny>>,
        tool_choice: Option<&Bound<'_, PyAny>>,
        parallel_tool_calls: bool,
        effort: Option<&str>,
        verbosity: Option<&str>,
        generate: bool,
        scope: Option<&Bound<'_, PyAny>>,
        now: Option<i64>,
    ) -> PyResult<Turn> {
        let started = std::time::Instant::now();
        let parent = parent.map(|node| node.get().0.clone());
        let input = buffer::bytes(input)?;
        let instructions = instructions.map(buffer::bytes).transpose()?;
        let tools = tools.map(buffer::bytes).transpose()?;
        let tool_choice = tool_choice.map(buffer::bytes).transpose()?;
        let scope: Option<Arc<[u8]>> = scope.map(buffer::bytes).transpose()?.map(Into::into);
        let turn = detached(py, || {
            let request = OpenRequest {
                input: &input,
                header: RawHeader {
                    instructions: instructions.as_deref(),
                    tools: tools.as_deref(),
                    tool_choice: tool_choice.as_deref(),
                },
                parallel_tool_calls,
                effort,
                verbosity,
                generate,
                now,
                scope: scope.as_ref(),
            };
            self.chains.open(parent.as_ref(), request)
        })?;
        Ok(Turn::new(turn, started.elapsed()))
    }
}

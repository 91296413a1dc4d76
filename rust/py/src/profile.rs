//! `Profile`: a model's tokenizer, template and family.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use turnwire_core::audit::audit;
use turnwire_core::family::Answer;
use turnwire_core::{Options, View};

use crate::buffer::{self, TokenBuffer};
use crate::error::detached;

#[pyclass(frozen, module = "turnwire._core")]
pub(crate) struct Profile(pub(crate) Arc<turnwire_core::Profile>);

#[pymethods]
#[expect(clippy::needless_pass_by_value, reason = "PyO3 converts arguments into values")]
impl Profile {
    #[staticmethod]
    #[pyo3(signature = (path, *, trust = "strict", history = "template", verdicts = None))]
    fn load(
        py: Python<'_>,
        path: PathBuf,
        trust: &str,
        history: &str,
        verdicts: Option<PathBuf>,
    ) -> PyResult<Self> {
        detached(py, || {
            let options = Options::parse(trust, history)?;
            turnwire_core::Profile::load(&path, options, verdicts.as_deref())
        })
        .map(|profile| Self(Arc::new(profile)))
    }

    #[pyo3(signature = (template, *, trust = "strict", history = "template"))]
    fn with_template(
        &self,
        py: Python<'_>,
        template: &str,
        trust: &str,
        history: &str,
    ) -> PyResult<Self> {
        detached(py, || self.0.with_template(template, Options::parse(trust, history)?))
            .map(|profile| Self(Arc::new(profile)))
    }

    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    #[getter]
    fn family(&self) -> &str {
        self.0.format().name()
    }

    #[getter]
    fn not_native(&self) -> Option<&str> {
        self.0.not_native()
    }

    #[getter]
    fn reads_calls(&self) -> bool {
        self.0.format().reads_calls()
    }

    #[getter]
    fn encoder(&self) -> &str {
        self.0.vocabulary().encoder.name()
    }

    #[getter]
    fn fingerprint(&self) -> String {
        self.0.fingerprint_hex()
    }

    #[getter]
    fn trust(&self) -> &'static str {
        self.0.trust().as_str()
    }

    #[getter]
    fn vocab_size(&self) -> usize {
        self.0.vocabulary().pieces.len()
    }

    #[getter]
    fn context_length(&self) -> Option<usize> {
        self.0.context_length()
    }

    #[getter]
    fn stop_token_ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let ids: HashSet<u32> = self.0.stop_token_ids().iter().copied().collect();
        Ok(pyo3::types::PyFrozenSet::new(py, ids)?.into_any())
    }

    #[getter]
    fn knows_verbosity(&self) -> bool {
        self.0.renderer().generic.verbosity("low").is_some()
    }

    fn audit(&self, py: Python<'_>) -> Vec<(&'static str, &'static str, String)> {
        let findings = py.detach(|| audit(&self.0));
        findings
            .into_iter()
            .map(|found| (found.topic, found.verdict.as_str(), found.text))
            .collect()
    }

    #[pyo3(signature = (text, *, control = false))]
    fn encode(&self, py: Python<'_>, text: &str, control: bool) -> PyResult<TokenBuffer> {
        let ids = detached(py, || self.0.encode(text, control))?;
        Ok(TokenBuffer::new(View::of(ids)))
    }

    #[pyo3(signature = (text, *, control = false))]
    fn encode_reference(&self, py: Python<'_>, text: &str, control: bool) -> PyResult<TokenBuffer> {
        let ids = detached(py, || self.0.encode_reference(text, control))?;
        Ok(TokenBuffer::new(View::of(ids)))
    }

    fn decode(&self, ids: &Bound<'_, PyAny>) -> PyResult<String> {
        let py = ids.py();
        let ids = buffer::ids(ids)?;
        detached(py, || self.0.decode(&ids))
    }

    fn encode_output(&self, output: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        let py = output.py();
        let output = buffer::bytes(output)?;
        detached(py, || self.0.encode_answer(&Answer::parse(&output)?))
    }
}

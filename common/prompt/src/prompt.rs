//! What a request's prompt is in tokens.

use std::sync::Arc;

use kvgrid_core::parity::Kind;
use thiserror::Error;

/// A request's prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The token ids the engine will see, in order.
    pub tokens: Arc<[u32]>,
    /// Whether `tokens` is the whole prompt; if not, it ends before the first image, video
    /// or sound, whose tokens only the site knows.
    pub complete: bool,
    /// Where the ids come from.
    pub source: Source,
    /// By what rules they were made.
    pub kind: Kind,
    /// The LoRA adapter's canonical name, which enters the hashes.
    pub lora: Option<String>,
    /// The cache namespace, which enters the hashes.
    pub namespace: Option<String>,
}

/// Where a prompt's token ids come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Rendered and tokenised here.
    Tokenised,
    /// The client sent them: `nvext.token_data`, or a prompt of ids.
    Client,
}

/// Why a request's tokens aren't known here. The request may still be served: whoever asked
/// routes without tokens, and the site has the last word on whether it is valid.
#[derive(Debug, Error)]
pub enum PromptError {
    /// The body isn't a request of its kind; the client's fault.
    #[error("{0}")]
    Malformed(#[from] serde_json::Error),
    /// The request asks for several completions of several prompts.
    #[error("the request holds {0} prompts")]
    Several(usize),
    /// The request's prompt isn't text or token ids.
    #[error("{0}")]
    Untokenised(&'static str),
    /// The model has no chat template; the client's fault, or the site tokenises elsewhere.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The template prints the date, and the site's clock stands in another time zone.
    #[error("the template prints the date of {site}, this process runs in {ours}")]
    ForeignClock {
        /// The site's time zone.
        site: String,
        /// This process's.
        ours: String,
    },
    /// The template refused the messages; mostly the client's fault.
    #[error("the chat template: {0}")]
    Template(String),
    /// The tokenizer refused the text; its own fault.
    #[error("the tokenizer: {0}")]
    Tokenizer(String),
}

/// The cache namespace that a request's `x-tenant-id` headers name: the last one that isn't
/// blank, trimmed. It goes before any namespace in the body.
pub fn cache_namespace<'a>(tenant_ids: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    tenant_ids
        .into_iter()
        .map(str::trim)
        .filter(|value| !value.is_empty())
        .last()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_tenant_that_is_not_blank_names_the_namespace() {
        assert_eq!(cache_namespace(["a", " b ", "  "]), Some("b"));
        assert_eq!(cache_namespace([" "]), None);
        assert_eq!(cache_namespace([]), None);
    }
}

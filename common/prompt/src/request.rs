//! The parts of a request body that decide its tokens.
//!
//! A chat body is read twice: once as Dynamo's typed request, which drops what its templates
//! never see, and once for the fields that Dynamo adds to OpenAI's. Two passes that skip are
//! cheaper than one that buffers, and unknown fields are ignored as the site ignores them.

use std::collections::HashMap;

use dynamo_protocols::types::{CreateChatCompletionRequest, Prompt as PromptField};
use serde::Deserialize;
use serde_json::Value;

/// Arguments for a chat template, by name.
pub(crate) type TemplateArgs = HashMap<String, Value>;

/// What Dynamo adds to OpenAI's chat request, as far as tokens depend on it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ChatExtensions {
    pub(crate) add_generation_prompt: Option<bool>,
    pub(crate) continue_final_message: Option<bool>,
    #[serde(alias = "chat_template_kwargs")]
    pub(crate) chat_template_args: Option<TemplateArgs>,
    pub(crate) thinking: Option<Value>,
    pub(crate) nvext: Option<NvExt>,
    pub(crate) cache_salt: Option<Value>,
}

/// A completion request, as far as tokens depend on it.
#[derive(Debug, Deserialize)]
pub(crate) struct CompletionBody {
    pub(crate) prompt: PromptField,
    #[serde(default)]
    pub(crate) prompt_embeds: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    pub(crate) nvext: Option<NvExt>,
    #[serde(default)]
    pub(crate) cache_salt: Option<Value>,
}

/// Dynamo's request extension, as far as tokens depend on it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NvExt {
    pub(crate) token_data: Option<Vec<u32>>,
    pub(crate) cache_salt: Option<String>,
}

/// Reads both halves of a chat body.
pub(crate) fn chat(
    body: &[u8],
) -> Result<(CreateChatCompletionRequest, ChatExtensions), serde_json::Error> {
    Ok((serde_json::from_slice(body)?, serde_json::from_slice(body)?))
}

/// The cache namespace: the header's, else `nvext.cache_salt`, else `cache_salt`; empty
/// texts are none.
pub(crate) fn namespace(
    header: Option<&str>,
    nvext: Option<&NvExt>,
    cache_salt: Option<&Value>,
) -> Option<String> {
    let nvext = nvext.and_then(|nvext| nvext.cache_salt.as_deref());
    let top = cache_salt.and_then(Value::as_str);
    [header, nvext, top]
        .into_iter()
        .flatten()
        .find(|salt| !salt.is_empty())
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_header_goes_before_nvext_and_nvext_before_the_top_level() {
        let nvext = |salt: &str| NvExt {
            token_data: None,
            cache_salt: Some(salt.into()),
        };
        let top = json!("top");
        let of = |header, salt| namespace(header, Some(&nvext(salt)), Some(&top));

        assert_eq!(of(Some("header"), "nvext").as_deref(), Some("header"));
        assert_eq!(of(None, "nvext").as_deref(), Some("nvext"));
        assert_eq!(of(None, "").as_deref(), Some("top"));
        assert_eq!(namespace(None, None, Some(&json!(7))), None);
    }
}

//! Which kind of request a chat is: what of it goes through rules of its own on its way to
//! tokens.

use dynamo_protocols::types::{
    ChatCompletionRequestAssistantMessageContent as AssistantContent,
    ChatCompletionRequestDeveloperMessageContent as DeveloperContent,
    ChatCompletionRequestMessage as Message,
    ChatCompletionRequestSystemMessageContent as SystemContent,
    ChatCompletionRequestToolMessageContent as ToolContent,
    ChatCompletionRequestUserMessageContent as UserContent, CreateChatCompletionRequest,
};
use kvgrid_core::parity::{Kind, Trait};

use crate::media;
use crate::request::ChatExtensions;

/// The traits of a chat, but for adapters, which the model decides.
#[expect(deprecated, reason = "clients may still use the older form")]
pub(crate) fn of_chat(request: &CreateChatCompletionRequest, extensions: &ChatExtensions) -> Kind {
    let any = |has: fn(&Message) -> bool| request.messages.iter().any(has);
    let args = extensions.chat_template_args.as_ref();
    let tools = request.has_effective_tools() || request.functions.is_some() || any(uses_tools);
    let reasoning = request.reasoning_effort.is_some()
        || extensions.thinking.is_some()
        || args.is_some_and(|args| !args.is_empty())
        || any(reasons);
    Kind::PLAIN
        .with_if(Trait::Tools, tools)
        .with_if(Trait::Reasoning, reasoning)
        .with_if(Trait::Arrays, any(is_array))
        .with_if(Trait::Media, media::first(&request.messages).is_some())
}

#[expect(deprecated, reason = "clients may still use the older form")]
fn uses_tools(message: &Message) -> bool {
    match message {
        Message::Tool(_) | Message::Function(_) => true,
        Message::Assistant(assistant) => {
            assistant.tool_calls.is_some() || assistant.function_call.is_some()
        }
        Message::Developer(_) | Message::System(_) | Message::User(_) => false,
    }
}

fn reasons(message: &Message) -> bool {
    matches!(message, Message::Assistant(assistant) if assistant.reasoning_content.is_some())
}

fn is_array(message: &Message) -> bool {
    match message {
        Message::Developer(of) => matches!(of.content, DeveloperContent::Array(_)),
        Message::System(of) => matches!(of.content, SystemContent::Array(_)),
        Message::User(of) => matches!(of.content, UserContent::Array(_)),
        Message::Assistant(of) => matches!(of.content, Some(AssistantContent::Array(_))),
        Message::Tool(of) => matches!(of.content, ToolContent::Array(_)),
        Message::Function(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::request;

    fn named(body: &Value) -> String {
        let body = serde_json::to_vec(body).unwrap();
        let (request, extensions) = request::chat(&body).unwrap();
        of_chat(&request, &extensions).to_string()
    }

    fn with(field: &str, value: Value) -> Value {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        body[field] = value;
        body
    }

    fn said(message: &Value) -> Value {
        with("messages", json!([message]))
    }

    #[test]
    fn a_chat_is_of_the_kind_that_its_traits_make() {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
        let call =
            json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let text = json!([{"type": "text", "text": "hi"}]);
        let image = json!([{"type": "image_url", "image_url": {"url": "http://a.example/x.png"}}]);
        let kinds = [
            (with("temperature", json!(1)), "plain"),
            (with("tools", json!([])), "plain"),
            (with("tools", json!([tool])), "tools"),
            (
                said(&json!({"role": "assistant", "tool_calls": [call]})),
                "tools",
            ),
            (
                said(&json!({"role": "tool", "tool_call_id": "1", "content": "x"})),
                "tools",
            ),
            (with("reasoning_effort", json!("low")), "reasoning"),
            (with("thinking", json!({"type": "enabled"})), "reasoning"),
            (
                with("chat_template_kwargs", json!({"enable_thinking": false})),
                "reasoning",
            ),
            (
                said(&json!({"role": "assistant", "content": "x", "reasoning_content": "y"})),
                "reasoning",
            ),
            (said(&json!({"role": "user", "content": text})), "arrays"),
            (said(&json!({"role": "system", "content": text})), "arrays"),
            (
                said(&json!({"role": "user", "content": image})),
                "arrays+media",
            ),
        ];

        for (body, kind) in kinds {
            assert_eq!(named(&body), kind, "{body}");
        }
    }
}

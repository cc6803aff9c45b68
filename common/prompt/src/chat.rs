//! Chat requests to prompt text, as the site's frontend renders them.

mod arguments;

use std::sync::Arc;

use dynamo_protocols::types::{ChatCompletionRequestMessage, CreateChatCompletionRequest};
use dynamo_renderer::{
    ChatTemplate, ContextMixins, OAIChatLikeRequest, OAIPromptFormatter, PromptContextMixin,
    PromptFormatter, RenderedPrompt, TextInput, deepseek_formatter_for, kimi_k3_formatter_for,
};
use minijinja::Value;
use serde_json::Value as Json;

use crate::card::{Card, ChatRules, ContextMixin};
use crate::prompt::PromptError;
use crate::request::{ChatExtensions, TemplateArgs};
use crate::thinking;

/// Marks where the last message ends while it is rendered, as Transformers and Dynamo do.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";
const CONTINUE_LOST: &str = "the final message to continue is not in the rendered template";

/// A model's chat format.
pub(crate) struct ChatFormat {
    formatter: Arc<dyn OAIPromptFormatter>,
    rules: ChatRules,
    arguments_as_objects: bool,
    foreign_clock: Option<(String, String)>,
}

impl ChatFormat {
    /// The format of a card's model, if it has one. `time_zone` is this process's.
    pub(crate) fn load(card: &Card, time_zone: &str) -> Result<Option<Self>, String> {
        let rules = card.chat.clone();
        let name = card.model.to_lowercase();
        let exclude_tools = rules.exclude_tools_when_tool_choice_none;
        let native = kimi_k3_formatter_for(&card.model_type, &name, exclude_tools)
            .or_else(|| deepseek_formatter_for(&card.model_type, &name));
        let (formatter, dated) = match native {
            Some(formatter) => (formatter, false),
            None => match template(card)? {
                Some(found) => found,
                None => return Ok(None),
            },
        };
        let PromptFormatter::OAI(formatter) = formatter;
        let foreign = dated && card.time_zone != time_zone;
        Ok(Some(Self {
            formatter,
            arguments_as_objects: rules.tool_arguments_as_objects
                || rules.tool_call_parser.as_deref() == Some("glm47"),
            rules,
            foreign_clock: foreign.then(|| (card.time_zone.clone(), time_zone.to_owned())),
        }))
    }

    /// The prompt of a request.
    pub(crate) fn render(
        &self,
        request: &CreateChatCompletionRequest,
        extensions: &ChatExtensions,
    ) -> Result<RenderedPrompt, PromptError> {
        if let Some((site, ours)) = self.foreign_clock.clone() {
            return Err(PromptError::ForeignClock { site, ours });
        }
        let goes_on = extensions.continue_final_message == Some(true);
        let view = ChatView {
            request,
            args: self.template_args(request, extensions)?,
            generation_prompt: !goes_on && extensions.add_generation_prompt.unwrap_or(true),
            rewritten: self.rewritten(request, goes_on)?,
        };
        let prompt = self
            .formatter
            .render_prompt(&view)
            .map_err(|error| PromptError::Template(format!("{error:#}")))?;
        if goes_on {
            cut_at_tag(&prompt)
        } else {
            Ok(prompt)
        }
    }

    fn template_args(
        &self,
        request: &CreateChatCompletionRequest,
        extensions: &ChatExtensions,
    ) -> Result<TemplateArgs, PromptError> {
        let json = |value| serde_json::to_value(value).map_err(PromptError::Malformed);
        let choice = request.tool_choice.as_ref().map(serde_json::to_value);
        let choice = choice.transpose()?;
        let format = json(&request.response_format)?;
        let names_tool = choice.as_ref().is_some_and(Json::is_object);
        let forced = names_tool || choice.is_some_and(|choice| choice == "required");
        let structured = format["type"].as_str().is_some_and(|kind| kind != "text");
        let facts = thinking::Request {
            thinking: extensions.thinking.as_ref(),
            reasoning_effort: request
                .reasoning_effort
                .as_ref()
                .map(serde_json::to_value)
                .transpose()?,
            names_tool,
            constrained: forced || structured,
        };
        let mut args = extensions.chat_template_args.clone().unwrap_or_default();
        thinking::settle(&mut args, &facts, &self.rules)
            .map_err(|_| PromptError::Untokenised("`thinking` has none of its forms"))?;
        for (name, value) in &self.rules.template_args {
            args.entry(name.clone()).or_insert_with(|| value.clone());
        }
        Ok(args)
    }

    /// The messages as JSON, if they reach the template otherwise than as they came.
    fn rewritten(
        &self,
        request: &CreateChatCompletionRequest,
        goes_on: bool,
    ) -> Result<Option<Json>, PromptError> {
        if !goes_on && !self.arguments_as_objects {
            return Ok(None);
        }
        let mut messages = serde_json::to_value(&request.messages)?;
        if self.arguments_as_objects {
            arguments::parse_all(&mut messages);
        }
        if goes_on {
            append_tag(&mut messages).ok_or_else(|| PromptError::Template(CONTINUE_LOST.into()))?;
        }
        Ok(Some(messages))
    }
}

/// The formatter of the model's template, and whether it prints the date.
fn template(card: &Card) -> Result<Option<(PromptFormatter, bool)>, String> {
    let Some(config) = card.file("tokenizer_config.json") else {
        return Ok(None);
    };
    let mut config: Json = serde_json::from_slice(config)
        .map_err(|error| format!("tokenizer_config.json: {error}"))?;
    if let Some(template) = separate_template(card)? {
        config["chat_template"] = template;
    }
    if config["chat_template"].is_null() {
        return Ok(None);
    }
    let dated = config["chat_template"].to_string().contains("strftime_now");
    let config: ChatTemplate = serde_json::from_value(config)
        .map_err(|error| format!("tokenizer_config.json: {error}"))?;
    let mixin = |mixin: &ContextMixin| match mixin {
        ContextMixin::OaiChat => PromptContextMixin::OaiChat,
        ContextMixin::Llama3DateTime => PromptContextMixin::Llama3DateTime,
    };
    let mixins: Vec<_> = card.chat.context.iter().map(mixin).collect();
    let exclude_tools = card.chat.exclude_tools_when_tool_choice_none;
    PromptFormatter::from_parts(config, ContextMixins::new(&mixins), exclude_tools)
        .map(|formatter| Some((formatter, dated)))
        .map_err(|error| format!("the chat template: {error:#}"))
}

/// A template in a file of its own goes before the one in tokenizer_config.json.
fn separate_template(card: &Card) -> Result<Option<Json>, String> {
    if let Some(file) = card.file("chat_template.jinja") {
        let text =
            std::str::from_utf8(file).map_err(|error| format!("chat_template.jinja: {error}"))?;
        return Ok(Some(text.into()));
    }
    let Some(file) = card.file("chat_template.json") else {
        return Ok(None);
    };
    let mut wrapper: Json =
        serde_json::from_slice(file).map_err(|error| format!("chat_template.json: {error}"))?;
    match wrapper.get_mut("chat_template") {
        Some(template) => Ok(Some(template.take())),
        None => Err("chat_template.json: no chat_template in it".into()),
    }
}

/// Appends the tag to the last message's last text that isn't empty.
fn append_tag(messages: &mut Json) -> Option<()> {
    match messages.as_array_mut()?.last_mut()?.get_mut("content")? {
        Json::String(text) if !text.is_empty() => {
            text.push_str(CONTINUE_TAG);
            Some(())
        }
        Json::Array(parts) => parts.iter_mut().rev().find_map(|part| {
            let Some(Json::String(text)) = part.get_mut("text") else {
                return None;
            };
            (!text.is_empty()).then(|| text.push_str(CONTINUE_TAG))
        }),
        _ => None,
    }
}

/// The prompt up to the tag; a template that trimmed the tag trims what is before it, too.
fn cut_at_tag(prompt: &RenderedPrompt) -> Result<RenderedPrompt, PromptError> {
    if prompt.segments().is_some() {
        return Err(PromptError::Untokenised(
            "a prompt in segments that goes on the final message",
        ));
    }
    let text = prompt.as_str();
    let at = text
        .rfind(CONTINUE_TAG.trim_end())
        .ok_or_else(|| PromptError::Template(CONTINUE_LOST.into()))?;
    let kept = if text[at..].starts_with(CONTINUE_TAG) {
        &text[..at]
    } else {
        text[..at].trim_end()
    };
    Ok(RenderedPrompt::text(kept.to_owned()))
}

/// A request as the renderer sees it. The ready-made one knows no template arguments.
struct ChatView<'a> {
    request: &'a CreateChatCompletionRequest,
    args: TemplateArgs,
    generation_prompt: bool,
    rewritten: Option<Json>,
}

impl OAIChatLikeRequest for ChatView<'_> {
    fn model(&self) -> String {
        self.request.model.clone()
    }

    fn messages(&self) -> Value {
        match &self.rewritten {
            Some(messages) => Value::from_serialize(messages),
            None => OAIChatLikeRequest::messages(self.request),
        }
    }

    fn typed_messages(&self) -> Option<&[ChatCompletionRequestMessage]> {
        match self.rewritten {
            Some(_) => None,
            None => Some(&self.request.messages),
        }
    }

    fn tools(&self) -> Option<Value> {
        OAIChatLikeRequest::tools(self.request)
    }

    fn tool_choice(&self) -> Option<Value> {
        OAIChatLikeRequest::tool_choice(self.request)
    }

    fn response_format(&self) -> Option<Value> {
        OAIChatLikeRequest::response_format(self.request)
    }

    fn should_add_generation_prompt(&self) -> bool {
        self.generation_prompt
    }

    fn chat_template_args(&self) -> Option<&TemplateArgs> {
        Some(&self.args)
    }

    fn extract_text(&self) -> Option<TextInput> {
        Some(TextInput::Single(String::new()))
    }

    fn mm_processor_kwargs(&self) -> Option<&Json> {
        self.request.mm_processor_kwargs.as_ref()
    }
}

//! Prompts with images, video or sound: what of them is known here.
//!
//! The site replaces a medium by as many tokens as its model's processor makes of it, so a
//! prompt's tokens are known only up to the first one. Where that is in the rendered text is
//! the template's affair. It is found by rendering once more with the medium replaced by a
//! marked text and everything behind it dropped: what both renderings have in common before
//! the mark is made of nothing that comes after it.

use dynamo_protocols::types::{
    ChatCompletionRequestMessage as Message,
    ChatCompletionRequestMessageContentPartText as TextPart,
    ChatCompletionRequestToolMessageContent as ToolContent,
    ChatCompletionRequestToolMessageContentPart as ToolPart,
    ChatCompletionRequestUserMessageContent as UserContent,
    ChatCompletionRequestUserMessageContentPart as UserPart,
};

const MARK: &str = "\u{1}kvgrid first medium\u{1}";

/// Where a request's first medium is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    message: usize,
    part: usize,
}

/// The first medium among the messages, if there is one.
pub(crate) fn first(messages: &[Message]) -> Option<Place> {
    messages.iter().enumerate().find_map(|(message, content)| {
        let part = match content {
            Message::User(user) => match &user.content {
                UserContent::Array(parts) => parts
                    .iter()
                    .position(|part| !matches!(part, UserPart::Text(_))),
                UserContent::Text(_) => None,
            },
            Message::Tool(tool) => match &tool.content {
                ToolContent::Array(parts) => parts
                    .iter()
                    .position(|part| !matches!(part, ToolPart::Text(_))),
                ToolContent::Text(_) => None,
            },
            Message::Developer(_)
            | Message::System(_)
            | Message::Assistant(_)
            | Message::Function(_) => None,
        };
        part.map(|part| Place { message, part })
    })
}

/// Replaces the medium at `place` by a mark, and drops everything behind it.
pub(crate) fn mark(messages: &mut Vec<Message>, place: Place) {
    messages.truncate(place.message + 1);
    let text = TextPart {
        text: MARK.into(),
        ..TextPart::default()
    };
    match messages.last_mut() {
        Some(Message::User(user)) => {
            if let UserContent::Array(parts) = &mut user.content {
                parts.truncate(place.part);
                parts.push(UserPart::Text(text));
            }
        }
        Some(Message::Tool(tool)) => {
            if let ToolContent::Array(parts) = &mut tool.content {
                parts.truncate(place.part);
                parts.push(ToolPart::Text(text));
            }
        }
        _ => {}
    }
}

/// The beginning that the whole rendering shares with the marked one, before the mark.
pub(crate) fn shared<'a>(whole: &'a str, marked: &str) -> &'a str {
    let Some(end) = marked.find(MARK) else {
        return "";
    };
    let same = whole.bytes().zip(marked[..end].bytes());
    let mut length = same.take_while(|(left, right)| left == right).count();
    while !whole.is_char_boundary(length) {
        length -= 1;
    }
    &whole[..length]
}

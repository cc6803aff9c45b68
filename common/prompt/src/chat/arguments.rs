//! Tool call arguments as objects, for sites whose templates need them so.
//!
//! Clients send them as JSON in a string. Numbers that a double can't spell as the client
//! did become strings, which is how the site's frontend keeps them.

use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Parses the arguments of every tool call in `messages`. Arguments that are no JSON stay
/// as they are, in that message and all after it.
pub(super) fn parse_all(messages: &mut Value) {
    let calls = messages
        .as_array_mut()
        .into_iter()
        .flatten()
        .filter_map(|message| message.get_mut("tool_calls")?.as_array_mut())
        .flatten();
    for call in calls {
        let Some(slot) = call.pointer_mut("/function/arguments") else {
            continue;
        };
        let Some(text) = slot.as_str() else {
            continue;
        };
        match parse(text) {
            Some(parsed) => *slot = parsed,
            None => return,
        }
    }
}

/// An object as such, anything else as an empty object; `None` if it is no JSON.
fn parse(text: &str) -> Option<Value> {
    if text.is_empty() {
        return Some(Value::Object(Map::new()));
    }
    let value: Value = serde_json::from_str(text).ok()?;
    let Value::Object(mut object) = value else {
        return Some(Value::Object(Map::new()));
    };
    let Spelled(spelled) = serde_json::from_str(text).ok()?;
    for (name, raw) in spelled {
        if let Some(Value::Number(number)) = object.get(&name)
            && number.to_string() != raw.get()
        {
            object.insert(name, raw.get().into());
        }
    }
    Some(Value::Object(object))
}

/// An object's fields in the client's own spelling.
struct Spelled(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Spelled {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Spelled;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Spelled, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Spelled(fields))
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(arguments: &str) -> Value {
        let mut messages = json!([
            {"role": "user", "content": "x"},
            {"role": "assistant", "tool_calls": [{"function": {"arguments": arguments}}]}
        ]);
        parse_all(&mut messages);
        messages[1]["tool_calls"][0]["function"]["arguments"].clone()
    }

    #[test]
    fn arguments_become_an_object_in_the_clients_order() {
        assert_eq!(
            parsed(r#"{"b": 1, "a": {"c": [2.5]}}"#).to_string(),
            r#"{"b":1,"a":{"c":[2.5]}}"#
        );
    }

    #[test]
    fn a_number_that_a_double_spells_otherwise_stays_a_text() {
        assert_eq!(
            parsed(r#"{"id": 123456789012345678901234567890}"#),
            json!({"id": "123456789012345678901234567890"})
        );
    }

    #[test]
    fn no_arguments_and_no_object_are_an_empty_object() {
        assert_eq!(parsed(""), json!({}));
        assert_eq!(parsed("[1]"), json!({}));
    }

    #[test]
    fn arguments_that_are_no_json_stay() {
        assert_eq!(parsed("{oops"), json!("{oops"));
    }
}

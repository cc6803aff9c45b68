//! Thinking controls of a chat request, as the site's frontend turns them into template
//! arguments.
//!
//! Clients say whether a model should think in four dialects: a top-level `thinking`, a
//! top-level `reasoning_effort`, and the template arguments `thinking`, `enable_thinking`
//! and `thinking_mode`. Dynamo settles on one answer and writes it in all of them, because
//! each template reads another one. First the request's own controls, at the HTTP door; then
//! the model's default; then what its reasoning parser implies.

use serde_json::Value;

use crate::card::{ChatRules, DefaultThinking};
use crate::request::TemplateArgs;

const CONTROLS: [&str; 4] = [
    "thinking",
    "enable_thinking",
    "thinking_mode",
    "reasoning_effort",
];

/// A top-level `thinking` that is none of the accepted forms; the site refuses it.
#[derive(Debug)]
pub(crate) struct BadThinking;

/// What the rules need to know of a request besides its template arguments.
pub(crate) struct Request<'a> {
    pub(crate) thinking: Option<&'a Value>,
    pub(crate) reasoning_effort: Option<Value>,
    /// `tool_choice` names a function.
    pub(crate) names_tool: bool,
    /// The output is held to a grammar: a forced tool call or a structured response.
    pub(crate) constrained: bool,
}

enum Mode {
    On(bool),
    Adaptive,
}

/// Writes the request's thinking controls, and the site's rules, into `args`.
pub(crate) fn settle(
    args: &mut TemplateArgs,
    request: &Request<'_>,
    rules: &ChatRules,
) -> Result<(), BadThinking> {
    settle_request(args, request)?;
    let from_client = CONTROLS.iter().any(|key| args.contains_key(*key));
    if let (false, Some(default)) = (from_client, rules.default_thinking) {
        set_all(args, default == DefaultThinking::Enabled);
    }
    settle_parser(args, request, rules, from_client);
    Ok(())
}

fn settle_request(args: &mut TemplateArgs, request: &Request<'_>) -> Result<(), BadThinking> {
    let mode = request.thinking.map(mode_of).transpose()?;
    let nested = || {
        args.get("reasoning_effort")
            .filter(|effort| !effort.is_null())
    };
    let effort = request
        .reasoning_effort
        .clone()
        .or_else(|| nested().cloned());
    let controlled = CONTROLS[..3].iter().any(|key| args.contains_key(*key));
    if mode.is_none() && effort.is_none() && !controlled {
        return Ok(());
    }
    match mode {
        Some(Mode::On(on)) => set_all(args, on),
        Some(Mode::Adaptive) => {
            args.remove("thinking");
            args.remove("enable_thinking");
            args.insert("thinking_mode".into(), "adaptive".into());
        }
        None => {}
    }
    if let Some(on) = decided(args, effort.as_ref()) {
        set_all(args, on);
    }
    if let Some(effort) = effort {
        args.insert("reasoning_effort".into(), effort);
    }
    Ok(())
}

fn mode_of(thinking: &Value) -> Result<Mode, BadThinking> {
    if let Some(on) = thinking.as_bool() {
        return Ok(Mode::On(on));
    }
    match thinking.get("type").and_then(Value::as_str) {
        Some("enabled") => Ok(Mode::On(true)),
        Some("disabled") => Ok(Mode::On(false)),
        Some("adaptive") => Ok(Mode::Adaptive),
        _ => Err(BadThinking),
    }
}

/// A flag goes before a mode, and a mode before an effort.
fn decided(args: &TemplateArgs, effort: Option<&Value>) -> Option<bool> {
    let flag = ["thinking", "enable_thinking"]
        .iter()
        .find_map(|key| args.get(*key)?.as_bool());
    if flag.is_some() {
        return flag;
    }
    let mode = args.get("thinking_mode").and_then(Value::as_str);
    match mode.map(str::to_ascii_lowercase).as_deref() {
        Some("adaptive") => None,
        Some("enabled") => Some(true),
        Some("disabled") => Some(false),
        _ => effort?.as_str().map(|effort| effort != "none"),
    }
}

fn set_all(args: &mut TemplateArgs, on: bool) {
    set_flags(args, on);
    let mode = if on { "enabled" } else { "disabled" };
    args.insert("thinking_mode".into(), mode.into());
}

fn set_flags(args: &mut TemplateArgs, on: bool) {
    args.insert("thinking".into(), on.into());
    args.insert("enable_thinking".into(), on.into());
}

fn settle_parser(
    args: &mut TemplateArgs,
    request: &Request<'_>,
    rules: &ChatRules,
    from_client: bool,
) {
    let reasoning = rules.reasoning_parser.as_deref();
    let tools = rules.tool_call_parser.as_deref();
    let minimax = matches!(reasoning, Some("minimax_m3" | "minimax-m3"))
        || matches!(
            tools,
            Some("minimax_m3" | "minimax-m3" | "minimax_m3_nom" | "minimax-m3-nom")
        );
    let on = alias(args)
        .or_else(|| matches!(reasoning, Some("kimi_k25" | "kimi_k3" | "kimi-k3")).then_some(true));
    if minimax && request.constrained && !from_client {
        set_all(args, false);
    } else if let Some(on) = on {
        let adaptive = args
            .get("thinking_mode")
            .and_then(Value::as_str)
            .is_some_and(|mode| mode.eq_ignore_ascii_case("adaptive"));
        if minimax && !adaptive {
            set_all(args, on);
        } else {
            set_flags(args, on);
        }
    }
    if request.names_tool && matches!(tools, Some("kimi_k3" | "kimi-k3")) {
        set_flags(args, false);
    }
}

/// The first control that says yes or no, in whatever type it says so.
fn alias(args: &TemplateArgs) -> Option<bool> {
    for key in &CONTROLS[..3] {
        match args.get(*key) {
            Some(Value::Bool(on)) if *key == "thinking_mode" => return Some(*on),
            Some(Value::Bool(_)) => return dynamo_renderer::thinking_bool_from_args(Some(args)),
            Some(Value::String(text)) if *key == "thinking_mode" => return mode_word(text),
            Some(Value::String(text)) => return Some(truthy(text)),
            Some(Value::Number(number)) => {
                if let Some(number) = number.as_f64() {
                    return Some(number != 0.0);
                }
            }
            _ => {}
        }
    }
    None
}

fn mode_word(text: &str) -> Option<bool> {
    let text = text.to_ascii_lowercase();
    match text.as_str() {
        "enabled" => Some(true),
        "disabled" => Some(false),
        _ if truthy(&text) => Some(true),
        "0" | "false" | "off" | "no" => Some(false),
        _ => None,
    }
}

fn truthy(text: &str) -> bool {
    matches!(
        text.to_ascii_lowercase().as_str(),
        "1" | "true" | "on" | "yes"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settled(args: Value, request: &Request<'_>, rules: &ChatRules) -> Value {
        let mut args: TemplateArgs = serde_json::from_value(args).unwrap();
        settle(&mut args, request, rules).unwrap();
        serde_json::to_value(args).unwrap()
    }

    const PLAIN: Request<'_> = Request {
        thinking: None,
        reasoning_effort: None,
        names_tool: false,
        constrained: false,
    };

    fn all(on: bool) -> Value {
        let mode = if on { "enabled" } else { "disabled" };
        json!({"thinking": on, "enable_thinking": on, "thinking_mode": mode})
    }

    fn parser(name: &str) -> ChatRules {
        ChatRules {
            reasoning_parser: Some(name.into()),
            ..ChatRules::default()
        }
    }

    #[test]
    fn a_request_that_says_nothing_gets_nothing() {
        let rules = ChatRules::default();

        assert_eq!(settled(json!({"x": 1}), &PLAIN, &rules), json!({"x": 1}));
    }

    #[test]
    fn each_dialect_is_restated_in_all_others() {
        let rules = ChatRules::default();
        let top = |thinking| {
            let request = Request {
                thinking: Some(&thinking),
                ..PLAIN
            };
            settled(json!({}), &request, &rules)
        };

        assert_eq!(top(json!(true)), all(true));
        assert_eq!(top(json!({"type": "disabled"})), all(false));
        for args in [
            json!({"enable_thinking": false}),
            json!({"thinking_mode": "Disabled"}),
        ] {
            assert_eq!(settled(args, &PLAIN, &rules), all(false));
        }
    }

    #[test]
    fn an_effort_decides_unless_a_flag_does() {
        let rules = ChatRules::default();
        let request = Request {
            reasoning_effort: Some(json!("none")),
            ..PLAIN
        };
        let with_effort = |on| {
            let mut args = all(on);
            args["reasoning_effort"] = json!("none");
            args
        };

        assert_eq!(settled(json!({}), &request, &rules), with_effort(false));
        assert_eq!(
            settled(json!({"thinking": true}), &request, &rules),
            with_effort(true)
        );
    }

    #[test]
    fn adaptive_leaves_the_decision_to_the_model() {
        let thinking = json!({"type": "adaptive"});
        let request = Request {
            thinking: Some(&thinking),
            ..PLAIN
        };

        assert_eq!(
            settled(json!({"thinking": true}), &request, &ChatRules::default()),
            json!({"thinking_mode": "adaptive"})
        );
    }

    #[test]
    fn the_models_default_yields_to_any_control_of_the_client() {
        let rules = ChatRules {
            default_thinking: Some(DefaultThinking::Disabled),
            ..ChatRules::default()
        };

        assert_eq!(settled(json!({}), &PLAIN, &rules), all(false));
        assert_eq!(
            settled(json!({"thinking": true}), &PLAIN, &rules),
            all(true)
        );
    }

    #[test]
    fn kimis_parser_turns_thinking_on_and_a_named_tool_turns_it_off() {
        let on = json!({"thinking": true, "enable_thinking": true});
        assert_eq!(settled(json!({}), &PLAIN, &parser("kimi_k25")), on);

        let rules = ChatRules {
            tool_call_parser: Some("kimi_k3".into()),
            ..parser("kimi_k3")
        };
        let request = Request {
            names_tool: true,
            ..PLAIN
        };
        let off = json!({"thinking": false, "enable_thinking": false});
        assert_eq!(settled(json!({}), &request, &rules), off);
    }

    #[test]
    fn minimax_does_not_think_under_a_grammar_unless_told_to() {
        let rules = parser("minimax_m3");
        let request = Request {
            constrained: true,
            ..PLAIN
        };

        assert_eq!(settled(json!({}), &request, &rules), all(false));
        assert_eq!(
            settled(json!({"enable_thinking": true}), &request, &rules),
            all(true)
        );
    }

    #[test]
    fn a_thinking_of_another_form_is_an_error() {
        let thinking = json!("yes");
        let request = Request {
            thinking: Some(&thinking),
            ..PLAIN
        };

        let settled = settle(&mut TemplateArgs::new(), &request, &ChatRules::default());
        assert!(settled.is_err());
    }
}

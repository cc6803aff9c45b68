use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::card::{CardOptions, ChatRules, DefaultThinking};

const FOX: &str =
    "the quick brown fox number 1 jumps over the lazy dog again and again and again and again";

fn card_with(change: impl FnOnce(&mut CardOptions)) -> Card {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tiny-chat");
    let mut options = CardOptions {
        time_zone: Some("UTC".into()),
        ..CardOptions::new("tiny-chat", NonZeroU32::new(16).unwrap())
    };
    change(&mut options);
    Card::from_model_dir(&dir, options).unwrap()
}

fn in_utc() -> LoadOptions {
    LoadOptions {
        memo_bytes: 1 << 20,
        time_zone: "UTC".into(),
    }
}

fn prompter() -> Prompter {
    Prompter::load(&card_with(|_| {}), &in_utc()).unwrap()
}

/// A prompter whose template is `template`, written as a file beside the model's own.
fn templated(template: &str, rules: ChatRules) -> Prompter {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("template.jinja");
    fs::write(&path, template).unwrap();
    let card = card_with(|options| {
        options.chat_template = Some(path);
        options.chat = rules;
    });
    Prompter::load(&card, &in_utc()).unwrap()
}

fn chat(prompter: &Prompter, body: &Value) -> Result<Prompt, PromptError> {
    prompter.chat(&serde_json::to_vec(body).unwrap(), None)
}

fn user(content: &Value) -> Value {
    json!({"model": "tiny-chat", "messages": [{"role": "user", "content": content}]})
}

/// The ids of a text as a completion's prompt, which has no template.
fn ids(prompter: &Prompter, text: &str) -> Vec<u32> {
    let body = json!({"model": "tiny-chat", "prompt": text});
    let body = serde_json::to_vec(&body).unwrap();
    prompter.completion(&body, None).unwrap().tokens.to_vec()
}

#[test]
fn a_chat_has_the_ids_that_dynamo_gave_it() {
    let prompter = prompter();

    let prompt = chat(&prompter, &user(&json!(FOX))).unwrap();

    assert_eq!(prompt.tokens.len(), 65);
    assert!(prompt.complete);
    let rendered = format!("<|im_start|>user\n{FOX}<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(*prompt.tokens, ids(&prompter, &rendered));
    assert_eq!(prompt.tokens[0], 1);
}

#[test]
fn the_fast_tokenizer_and_the_memo_are_trusted_for_this_model() {
    let prompter = prompter();

    assert_eq!(prompter.encoder(), &EncoderKind::Fast);
    assert_eq!(prompter.memo_stats(), Ok(MemoStats::default()));
}

#[test]
fn a_completion_is_encoded_without_a_template_or_special_tokens() {
    let prompter = prompter();
    let mut split = ids(&prompter, "Hello, ");
    split.extend([1, 2]);
    split.extend(ids(&prompter, "world"));

    assert_eq!(ids(&prompter, "Hello, <|im_start|><|im_end|>world"), split);
    assert!(ids(&prompter, "").is_empty());
}

#[test]
fn bytes_of_zero_are_dropped_before_encoding() {
    let prompter = prompter();

    assert_eq!(ids(&prompter, "a\0b\0"), ids(&prompter, "ab"));
}

fn completion(prompt: &Value) -> Result<Prompt, PromptError> {
    let body = json!({"model": "tiny-chat", "prompt": prompt});
    prompter().completion(&serde_json::to_vec(&body).unwrap(), None)
}

#[test]
fn a_prompt_of_ids_is_taken_as_it_is() {
    for prompt in [json!([5, 6, 7]), json!([[5, 6, 7]])] {
        let prompt = completion(&prompt).unwrap();

        assert_eq!(*prompt.tokens, [5, 6, 7]);
        assert_eq!(prompt.source, Source::Client);
    }
}

#[test]
fn one_prompt_in_an_array_counts_and_several_do_not() {
    assert_eq!(
        completion(&json!(["abc"])).unwrap().tokens,
        completion(&json!("abc")).unwrap().tokens
    );
    for several in [json!(["a", "b"]), json!([[1], [2]])] {
        assert!(matches!(completion(&several), Err(PromptError::Several(2))));
    }
}

#[test]
fn a_clients_own_token_data_is_the_prompt() {
    let prompter = prompter();
    let mut body = user(&json!("ignored"));
    body["nvext"] = json!({"token_data": [9, 8, 7], "extra_fields": ["worker_id"]});

    let of_chat = chat(&prompter, &body).unwrap();
    body["prompt"] = json!("ignored");
    let of_text = prompter
        .completion(&serde_json::to_vec(&body).unwrap(), None)
        .unwrap();

    for prompt in [of_chat, of_text] {
        assert_eq!(*prompt.tokens, [9, 8, 7]);
        assert_eq!(prompt.source, Source::Client);
    }
}

#[test]
fn the_namespace_comes_from_the_header_then_the_body() {
    let prompter = prompter();
    let mut body = user(&json!("x"));
    body["cache_salt"] = json!("top");
    let bytes = serde_json::to_vec(&body).unwrap();

    let by_body = prompter.chat(&bytes, None).unwrap();
    let by_header = prompter.chat(&bytes, Some("tenant")).unwrap();

    assert_eq!(by_body.namespace.as_deref(), Some("top"));
    assert_eq!(by_header.namespace.as_deref(), Some("tenant"));
}

#[test]
fn an_adapters_name_goes_with_its_prompts() {
    let card = card_with(|options| options.lora = Some("adapter-a".into()));
    let prompter = Prompter::load(&card, &in_utc()).unwrap();

    let prompt = chat(&prompter, &user(&json!("x"))).unwrap();

    assert_eq!(prompt.lora.as_deref(), Some("adapter-a"));
}

#[test]
fn a_body_that_is_no_request_is_an_error_that_says_where() {
    let error = prompter().chat(br#"{"model": "m", "messages": 7}"#, None);

    assert!(error.unwrap_err().to_string().contains("line 1 column"));
}

#[test]
fn unknown_fields_change_nothing() {
    let prompter = prompter();
    let mut body = user(&json!("x"));
    let plain = chat(&prompter, &body).unwrap();
    body["a_field_of_tomorrow"] = json!({"b": [1]});

    assert_eq!(chat(&prompter, &body).unwrap(), plain);
}

const ARGS: &str =
    "{% for m in messages %}{{ m.content }}{% endfor %}|{{ mode }}|{{ enable_thinking }}";

#[test]
fn template_arguments_reach_the_template_under_both_names() {
    let prompter = templated(ARGS, ChatRules::default());

    for name in ["chat_template_kwargs", "chat_template_args"] {
        let mut body = user(&json!("x"));
        body[name] = json!({"mode": "deep", "enable_thinking": false});

        let prompt = chat(&prompter, &body).unwrap();

        assert_eq!(*prompt.tokens, ids(&prompter, "x|deep|False"));
    }
}

#[test]
fn the_sites_default_arguments_yield_to_the_requests() {
    let rules = ChatRules {
        template_args: [("mode".to_owned(), json!("default"))].into(),
        default_thinking: Some(DefaultThinking::Enabled),
        ..ChatRules::default()
    };
    let prompter = templated(ARGS, rules);
    let mut body = user(&json!("x"));

    let prompt = chat(&prompter, &body).unwrap();
    assert_eq!(*prompt.tokens, ids(&prompter, "x|default|True"));

    body["thinking"] = json!({"type": "disabled"});
    body["chat_template_kwargs"] = json!({"mode": "own"});
    let prompt = chat(&prompter, &body).unwrap();
    assert_eq!(*prompt.tokens, ids(&prompter, "x|own|False"));
}

const TOOLS: &str = "{{ messages[0].content }}{% if tools %}{% for t in tools %}|{{ t.function.name }}{% endfor %}{% endif %}";

#[test]
fn tools_change_the_prompt_unless_the_choice_is_none() {
    let prompter = templated(TOOLS, ChatRules::default());
    let mut body = user(&json!("x"));
    body["tools"] = json!([{"type": "function", "function": {"name": "look"}}]);

    assert_eq!(
        *chat(&prompter, &body).unwrap().tokens,
        ids(&prompter, "x|look")
    );
    body["tool_choice"] = json!("none");
    assert_eq!(*chat(&prompter, &body).unwrap().tokens, ids(&prompter, "x"));
}

#[test]
fn the_generation_prompt_can_be_left_out() {
    let prompter = prompter();
    let mut body = user(&json!("x"));
    body["add_generation_prompt"] = json!(false);

    let prompt = chat(&prompter, &body).unwrap();

    assert_eq!(
        *prompt.tokens,
        ids(&prompter, "<|im_start|>user\nx<|im_end|>\n")
    );
}

#[test]
fn a_final_message_to_be_continued_stays_open() {
    let prompter = prompter();
    let mut body = user(&json!("x"));
    body["messages"]
        .as_array_mut()
        .unwrap()
        .push(json!({"role": "assistant", "content": "Once upon"}));
    body["add_generation_prompt"] = json!(false);
    body["continue_final_message"] = json!(true);

    let prompt = chat(&prompter, &body).unwrap();

    assert_eq!(
        *prompt.tokens,
        ids(
            &prompter,
            "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\nOnce upon"
        )
    );
}

#[test]
fn text_parts_are_joined_by_line_breaks() {
    let prompter = prompter();
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);

    let joined = chat(&prompter, &user(&parts)).unwrap();

    let text = chat(&prompter, &user(&json!("a\nb"))).unwrap();
    assert_eq!(joined.tokens, text.tokens);
    assert_eq!(joined.kind, text.kind.with(Trait::Arrays));
}

#[test]
fn a_prompt_with_an_image_is_known_up_to_the_image() {
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% else %}<image>{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}";
    let prompter = templated(template, ChatRules::default());
    let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    let body = |url: &str, after: &str| {
        json!({"model": "tiny-chat", "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [
                {"type": "text", "text": "what is this?"}, image(url), {"type": "text", "text": after}
            ]}
        ]})
    };

    let prompt = chat(&prompter, &body("http://a.example/x.png", "tell me")).unwrap();
    let other = chat(&prompter, &body("http://b.example/y.png", "or not")).unwrap();

    let before = ids(
        &prompter,
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nwhat is this?",
    );
    assert!(!prompt.complete);
    assert_eq!(prompt.tokens, other.tokens);
    assert!(before.starts_with(&prompt.tokens));
    assert!(prompt.tokens.len() + 2 >= before.len());
}

#[test]
fn a_template_that_prints_the_date_needs_the_sites_time_zone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("template.jinja");
    fs::write(&path, "{{ strftime_now('%Y') }}{{ messages[0].content }}").unwrap();
    let card = card_with(|options| {
        options.chat_template = Some(path);
        options.time_zone = Some("Asia/Tokyo".into());
    });
    let prompter = Prompter::load(&card, &in_utc()).unwrap();

    let error = chat(&prompter, &user(&json!("x"))).unwrap_err();

    assert!(matches!(error, PromptError::ForeignClock { .. }));
    assert!(!ids(&prompter, "x").is_empty());
}

#[test]
fn a_template_that_raises_is_an_error_and_no_panic() {
    let prompter = templated("{{ raise_exception('no') }}", ChatRules::default());

    let error = chat(&prompter, &user(&json!("x"))).unwrap_err();

    assert!(matches!(error, PromptError::Template(reason) if reason.contains("no")));
}

#[test]
fn a_card_without_its_tokenizer_is_refused_and_nothing_is_fetched() {
    let card = crate::card::without_files(card_with(|_| {}));
    let empty = Card::decode(&card.encode()).unwrap();

    assert_eq!(
        Prompter::load(&empty, &in_utc()).unwrap_err().to_string(),
        "the card has no tokenizer.json, and nothing is fetched"
    );
}

#[test]
fn a_model_without_a_template_still_takes_completions() {
    let dir = tempfile::tempdir().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tiny-chat");
    let name = "tokenizer.json";
    fs::copy(from.join(name), dir.path().join(name)).unwrap();
    let options = CardOptions::new("tiny-chat", NonZeroU32::new(16).unwrap());
    let card = Card::from_model_dir(dir.path(), options).unwrap();
    let prompter = Prompter::load(&card, &in_utc()).unwrap();

    assert!(matches!(
        chat(&prompter, &user(&json!("x"))),
        Err(PromptError::NoTemplate)
    ));
    assert_eq!(ids(&prompter, FOX), ids(&self::prompter(), FOX));
}

#[test]
fn a_tokenizer_that_is_no_tokenizer_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
    let options = CardOptions::new("broken", NonZeroU32::new(16).unwrap());
    let card = Card::from_model_dir(dir.path(), options).unwrap();

    let error = Prompter::load(&card, &in_utc()).unwrap_err();

    assert!(matches!(error, LoadError::Tokenizer(_)), "{error}");
}

//! Conversations: what a client says, turn by turn, and what became of each turn.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use http::HeaderMap;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::config::{MODEL, model_dir};
use crate::client::Client;

/// Tokens of an answer.
const ANSWER_TOKENS: u32 = 24;
/// Words of a question.
const QUESTION_WORDS: usize = 12;

/// A growing chat. The same seed gives the same words, another one shares no block with it.
#[derive(Clone, Debug)]
pub struct Conversation {
    rng: SmallRng,
    words: Vec<String>,
    messages: Vec<Value>,
    max_tokens: u32,
}

/// What became of a turn.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Whom the client asked.
    pub asked: String,
    /// Which site answered, as the edge says; empty when a site was asked itself.
    pub site: String,
    /// Tokens that the edge expected to be cached there.
    pub overlap_tokens: u64,
    /// Tokens of the prompt, as the site counts them.
    pub prompt_tokens: u64,
    /// Tokens that were cached there, as the site says.
    pub cached_tokens: u64,
    /// Time to the first token.
    pub first_token: Duration,
    /// Why the request went there, in the edge's words.
    pub decision: Option<String>,
    /// The answer.
    pub answer: String,
}

impl Conversation {
    /// A conversation that begins with a system prompt of about this many tokens.
    pub fn new(seed: u64, system_tokens: usize) -> anyhow::Result<Self> {
        let mut conversation = Self {
            rng: SmallRng::seed_from_u64(seed),
            words: words()?,
            messages: Vec::new(),
            max_tokens: ANSWER_TOKENS,
        };
        let system = conversation.say(system_tokens);
        conversation.push("system", &system);
        Ok(conversation)
    }

    /// Some words that no other seed says in this order. Each is one token.
    fn say(&mut self, words: usize) -> String {
        let mut text = String::new();
        for _ in 0..words {
            let word = self.rng.random_range(0..self.words.len());
            text.push_str(&self.words[word]);
        }
        text
    }

    fn push(&mut self, role: &str, content: &str) {
        self.messages
            .push(json!({"role": role, "content": content}));
    }

    /// How many answers there have been.
    pub fn turns(&self) -> usize {
        self.messages.len() / 2
    }

    /// The request body of the next turn: the whole conversation and a new question.
    fn next_body(&mut self) -> Value {
        let question = self.say(QUESTION_WORDS);
        self.push("user", &question);
        json!({
            "model": MODEL,
            "messages": self.messages,
            "max_tokens": self.max_tokens,
            "stream": true,
            "stream_options": {"include_usage": true},
        })
    }

    /// Asks `url`, which is called `asked`, and takes the answer in. A turn that fails
    /// leaves the conversation as it was.
    pub(crate) async fn turn(
        &mut self,
        client: &Client,
        asked: &str,
        url: &str,
    ) -> anyhow::Result<Turn> {
        let body = self.next_body();
        let turn = ask(client, asked, url, &body).await;
        match &turn {
            Ok(turn) => self.push("assistant", &turn.answer),
            Err(_) => {
                self.messages.pop();
            }
        }
        turn
    }
}

async fn ask(client: &Client, asked: &str, url: &str, body: &Value) -> anyhow::Result<Turn> {
    let start = Instant::now();
    let url = format!("{url}/v1/chat/completions");
    let mut events = client.stream(&url, body).await?;
    if !events.status.is_success() {
        let (status, body) = (events.status, events.rest().await?);
        bail!("{status}: {body}");
    }
    let mut turn = Turn {
        asked: asked.to_owned(),
        site: header(&events.headers, "x-kvgrid-site").unwrap_or_default(),
        overlap_tokens: number(&events.headers, "x-kvgrid-overlap-tokens"),
        prompt_tokens: 0,
        cached_tokens: 0,
        first_token: Duration::ZERO,
        decision: header(&events.headers, "x-kvgrid-decision"),
        answer: String::new(),
    };
    let (mut usage, mut done) = (None, false);
    while let Some(event) = events.next().await? {
        if event == "[DONE]" {
            done = true;
            continue;
        }
        let event: Value = serde_json::from_str(&event).with_context(|| event.clone())?;
        if let Some(text) = event["choices"][0]["delta"]["content"].as_str() {
            if turn.answer.is_empty() {
                turn.first_token = start.elapsed();
            }
            turn.answer.push_str(text);
        }
        usage = event.get("usage").cloned().or(usage);
        if event.get("error").is_some() {
            bail!("the answer ends with {event}");
        }
    }
    let usage = usage.filter(|_| done).context("the answer is not whole")?;
    turn.prompt_tokens = usage["prompt_tokens"].as_u64().unwrap_or_default();
    turn.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap_or_default();
    Ok(turn)
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

fn number(headers: &HeaderMap, name: &str) -> u64 {
    header(headers, name)
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

/// The model's tokens that are one word each.
fn words() -> anyhow::Result<Vec<String>> {
    let vocabulary = crate::emulator::Vocabulary::load(&model_dir())?;
    Ok(vocabulary.words().map(str::to_owned).collect())
}

//! Texts on which two ways to encode must agree before the faster one is trusted.
//!
//! A fixed list of what tokenizers are known to differ in, then pseudo-random texts from a
//! fixed seed, so that a card behaves alike on every edge: letters, digits, runs of space
//! and of punctuation, several scripts, combining marks, and the model's own added tokens
//! between, next to and inside of other text.

use crate::memo::AddedToken;

/// Bytes of pseudo-random text.
const RANDOM_BYTES: usize = 64 << 10;
/// Added tokens that take part; vocabularies with thousands of them exist.
const MAX_ADDED: usize = 512;

const FIXED: &[&str] = &[
    "",
    " ",
    "  ",
    "\n",
    "\r\n\r\n  \n\t\t x",
    "a",
    "Hello, world!",
    " leading and trailing ",
    "the quick brown fox number 1 jumps over the lazy dog again and again",
    "I'm you're he'll she'd we've don't I'M YOU'RE DON'T l'eau d\u{2019}accord",
    "1234567890 12 345 6789 3.14159 1,000,000 0x7f 1e-9 ½ ② Ⅷ ४५६",
    "fn main() { let x = &mut y[..3]; println!(\"{x:?}\\n\"); } // comment",
    "if (a&&b||!c) { return a->b.c(d, e)[0]; } /* x */ #include <stdio.h>",
    "{\"a\": [1, 2.0, null, true], \"b\": {\"c\": \"d\\\"e\"}}",
    "<html>\n\t<body class=\"x\">&amp;</body>\n</html>",
    "naïve café façade Ångström straße İstanbul ﬁ ﬂ Ǆ",
    "e\u{301}e\u{301} a\u{30a} n\u{303} \u{1e9b}\u{323} \u{212b} \u{2126}",
    "你好，世界！这是一个测试。日本語のテスト、カタカナ。한국어 시험입니다.",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم नमस्ते สวัสดี",
    "😀👍🏽👨‍👩‍👧‍👦🇩🇪🏳️‍🌈 ❤️ ☃ ✈️",
    "\u{feff}bom \u{200b}zero\u{200d}width\u{ad}soft \u{a0}nbsp\u{3000}wide \u{2028}line",
    "\u{fffd}\u{fffd} \u{1}\u{7f}\u{85} \u{e000} \u{10ffff}",
    "________----====....!!!!????((((((((~~~~````",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "                                                                   x",
    "\n\n\n\n\n\n\n\n\n\n\n\n x \n \n \t \n",
    "https://example.com/a/b?c=d&e=%20f#g user@example.com ../a/b.txt C:\\d\\e",
    "CamelCaseAnd_snake_case and-kebab-case SCREAMING_CASE x1y2z3",
    "system\nuser\nassistant\n<|im_start|>user\nhi<|im_end|>\n<|not_a_token|><think>\n\n</think>\n\n",
    "[INST] <<SYS>> </s> <s> <pad> <unk> <bos> <eos> [MASK]",
];

const PIECES: &[&str] = &[
    " ",
    " ",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    ".",
    ",",
    "!",
    "?",
    ";",
    ":",
    "'",
    "\"",
    "'s",
    "'re",
    "'LL",
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    "<",
    ">",
    "|",
    "<|",
    "|>",
    "/",
    "\\",
    "-",
    "--",
    "_",
    "=",
    "==",
    "+",
    "*",
    "&",
    "%",
    "$",
    "#",
    "@",
    "0",
    "7",
    "42",
    "2026",
    "1234567",
    "a",
    "I",
    "the",
    "The",
    "token",
    "ization",
    "ing",
    "function",
    "return",
    "über",
    "é",
    "e\u{301}",
    "ß",
    "ñ",
    "你",
    "好世界",
    "日本",
    "語",
    "한국",
    "при",
    "вет",
    "ελ",
    "שלום",
    "مرحبا",
    "नम",
    "😀",
    "👍🏽",
    "\u{200d}",
    "\u{a0}",
    "\u{3000}",
    "\u{fffd}",
    "ﬁ",
    "½",
    "İ",
    "ZZ",
    "qx",
    "xqj",
];

/// The texts for a model with these added tokens.
pub(crate) fn texts(added: &[AddedToken]) -> Vec<String> {
    let added: Vec<&str> = added
        .iter()
        .map(|token| token.text.as_str())
        .filter(|text| !text.is_empty())
        .take(MAX_ADDED)
        .collect();
    let mut texts: Vec<String> = FIXED.iter().map(|&text| text.to_owned()).collect();
    for token in &added {
        texts.push((*token).to_owned());
        texts.push(format!("a{token}b {token} c{token}{token}\n{token}\n"));
        // All but its last character must not be taken for it.
        let mut cut = (*token).to_owned();
        cut.pop();
        texts.push(format!("{cut} {cut}{token}x"));
    }
    let mut random = Random(0x6b76_6772_6964);
    let mut bytes = 0;
    while bytes < RANDOM_BYTES {
        let text = random_text(&mut random, &added);
        bytes += text.len();
        texts.push(text);
    }
    texts
}

/// Whether both ways give the same ids for every text; `Err` shows the first that differs.
pub(crate) fn agree(
    texts: &[String],
    left: impl Fn(&str) -> Result<Vec<u32>, String>,
    right: impl Fn(&str) -> Result<Vec<u32>, String>,
) -> Result<(), String> {
    for text in texts {
        if left(text)? != right(text)? {
            let shown: String = text.chars().take(40).collect();
            return Err(format!("the ids of {shown:?} differ"));
        }
    }
    Ok(())
}

fn random_text(random: &mut Random, added: &[&str]) -> String {
    let mut text = String::new();
    for _ in 0..1 + random.below(120) {
        if !added.is_empty() && random.below(12) == 0 {
            text.push_str(added[random.below(added.len())]);
        } else {
            text.push_str(PIECES[random.below(PIECES.len())]);
        }
    }
    text
}

/// Splitmix64: enough to vary texts, and the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        usize::try_from(mixed % limit).unwrap_or_default()
    }
}

//! Texts on which encoders are compared before one of them is trusted: fixed, so a verdict can be
//! kept, and chosen where tokenizers have differed.

use super::AddedToken;

/// Pieces of text at whose seams pre-tokenizers, normalizers and added-token scans disagree.
const FRAGMENTS: &[&str] = &[
    // White space: runs, kinds, and what follows a run.
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\n \n",
    " \n",
    "\t",
    "\t\t's",
    "\r\n",
    "\r",
    "\r\n\r\n  ",
    "\u{a0}",
    "\u{3000}",
    "\u{2003}\u{2003}",
    "\u{200b}",
    "\u{85}",
    "\u{2028}",
    "\u{b}\u{c}",
    "\u{1c}",
    "                ",
    "\n\n\n\n\n\n\n",
    " \t \n\t ",
    // Letters, case, contractions.
    "Hello",
    " world",
    "it's",
    "IT'S",
    "we'LL",
    "I'M",
    "don\u{2019}t",
    "'s",
    "'S 'll've",
    "x'x",
    "ſ",
    "'ſ",
    "İi",
    "ß",
    "ﬁ",
    "Ａｂｃ",
    "ºª",
    "camelCaseHTTPServer",
    // Digits, letters and signs that count as numbers.
    "1",
    "12",
    "1234567",
    " 007",
    "3.14159",
    "1,000,000",
    "²³",
    "½",
    "Ⅷ",
    "١٢٣",
    "१२३",
    "12ab34",
    "0x1F",
    // Scripts.
    "你好世界",
    "こんにちは",
    "カタカナ",
    "안녕하세요",
    "Привет",
    "ελληνικά",
    "שלום",
    "مرحبا",
    "नमस्ते",
    "ไทย",
    "ਪੰਜਾਬੀ",
    "汉字abc漢字",
    "、。「」",
    // Combining marks, composed and not; emoji and joiners.
    "é",
    "e\u{301}",
    "a\u{30a}\u{323}",
    "\u{301}",
    "각",
    "\u{1100}\u{1161}\u{11a8}",
    "\u{1e9b}\u{323}",
    "Å",
    "🙂",
    "👩\u{200d}👩\u{200d}👧\u{200d}👦",
    "🇫🇷",
    "👍🏽",
    "☃\u{fe0f}",
    "1\u{fe0f}\u{20e3}",
    "\u{1f3f4}\u{e0067}\u{e007f}",
    // Code and punctuation.
    "fn main() {\n    println!(\"{}\", x);\n}\n",
    "if (a && b) || !c { }",
    "/* c */ // d",
    "#!/bin/sh\n",
    "{\"a\": [1, 2.5, null]}",
    "</div><br/>",
    "<think>",
    "</tool_call>",
    "$x+=y**2;",
    "a->b::c",
    "...",
    "!!!",
    "—–",
    "\"“”'‘’",
    "`~^|\\",
    "@user #tag",
    "https://a.b/c?d=e&f#g",
    "snake_case_",
    "__init__",
    "%s%d\\n",
    // Literal specials, whole and broken.
    "<|im_start|>",
    "<|im_end|>",
    "<|im_end|",
    "|im_end|>",
    "<|endoftext|>",
    "<|",
    "|>",
    "<s>",
    "</s>",
    "▁",
    "▁▁a",
    "<0x0A>",
    "Ġ",
    "Ċ",
    "Ġthe",
    // Controls, noncharacters, the ends of the planes.
    "\0",
    "\u{1}",
    "\u{7f}",
    "\u{ad}",
    "\u{feff}",
    "\u{fffd}",
    "\u{fffe}",
    "\u{e000}",
    "\u{10ffff}",
    "𝔘𝔫𝔦",
    "𐍈",
    "\u{378}",
    "\u{1c89}",
    "\u{1e5d0}",
    "\u{10d40}",
];

/// Texts made of several fragments.
const COMBINATIONS: usize = 320;

/// Added tokens that are probed: all that have a flag, and this many of the others.
const PLAIN_ADDED: usize = 48;

/// What stands around an added token.
const CONTEXTS: &[(&str, &str)] = &[
    ("", ""),
    (" ", " "),
    ("a", "b"),
    ("a ", " b"),
    ("\n", "\n"),
    ("1", "2"),
    ("_", "_"),
    ("é", "\u{301}x"),
    ("\t \n", "\u{3000} "),
    ("<", ">"),
    ("e", "\u{327}\u{301}"),
    ("字", "字"),
];

/// A fixed sequence of numbers (xorshift): the probe must be the same on every machine.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let limit = u64::try_from(limit).unwrap_or(1).max(1);
        usize::try_from(self.0 % limit).unwrap_or(0)
    }
}

/// The texts to compare on, for a vocabulary with these added tokens.
pub(super) fn texts(added: &[AddedToken]) -> Vec<String> {
    let mut texts: Vec<String> = FRAGMENTS.iter().map(|&text| text.to_owned()).collect();
    let mut numbers = Numbers(0x7475_726e_7769_7265);
    for _ in 0..COMBINATIONS {
        let length = 2 + numbers.below(9);
        let text = (0..length).filter_map(|_| FRAGMENTS.get(numbers.below(FRAGMENTS.len())));
        texts.push(text.copied().collect());
    }
    texts.push(FRAGMENTS.concat());
    texts.push("a".repeat(3000));
    texts.push(" ".repeat(3000));
    texts.push("字".repeat(1000));
    let flagged =
        |token: &AddedToken| token.lstrip || token.rstrip || token.single_word || token.normalized;
    let plain = added.iter().filter(|token| !flagged(token));
    let step = (added.len() / PLAIN_ADDED).max(1);
    let chosen: Vec<&AddedToken> =
        added.iter().filter(|token| flagged(token)).chain(plain.step_by(step)).collect();
    for (index, token) in chosen.iter().enumerate() {
        let content = &token.content;
        for (before, after) in CONTEXTS {
            texts.push(format!("{before}{content}{after}"));
        }
        let other = chosen.get(numbers.below(chosen.len())).map_or("", |token| &token.content);
        texts.push(format!("{content}{other}"));
        texts.push(format!("{content} {other}{content}"));
        if index % 4 == 0 {
            let mut broken = content.clone();
            broken.pop();
            texts.push(format!("{broken}{content}{broken}"));
            texts.push(content.to_uppercase());
        }
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_is_the_same_every_time_and_some_hundred_texts_long() {
        assert_eq!(texts(&[]), texts(&[]));
        assert!(texts(&[]).len() > 400, "{}", texts(&[]).len());
    }
}

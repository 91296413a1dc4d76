//! Python's literals, and the JSON that says the same.

use std::iter::Peekable;
use std::str::Chars;

use crate::json;

/// Deepest nesting of a literal.
const DEPTH: usize = json::MAX_DEPTH;

/// A literal on its way: everything up to a comma or bracket that is not its own.
#[derive(Debug, Default)]
pub(super) struct Literal {
    text: String,
    /// The brackets that must yet come, innermost last.
    closers: Vec<char>,
    /// The quote that ends the string being read, and whether its next character is escaped.
    quote: Option<(char, bool)>,
}

impl Literal {
    /// Whether the next character is inside a string.
    pub(super) fn in_string(&self) -> bool {
        self.quote.is_some()
    }

    /// Takes `c`, unless it stands behind the literal.
    pub(super) fn take(&mut self, c: char) -> bool {
        match (&mut self.quote, c) {
            (Some((_, escaped)), _) if *escaped => *escaped = false,
            (Some((_, escaped)), '\\') => *escaped = true,
            (Some((quote, _)), c) if c == *quote => self.quote = None,
            (None, '"' | '\'') => self.quote = Some((c, false)),
            (None, '(') => self.closers.push(')'),
            (None, '[') => self.closers.push(']'),
            (None, '{') => self.closers.push('}'),
            (None, _) if self.closers.last() == Some(&c) => {
                self.closers.pop();
            }
            (None, ',' | ')' | ']' | '}') if self.closers.is_empty() => return false,
            _ => {}
        }
        self.text.push(c);
        true
    }

    /// Its value in JSON; a string of what stands there where that is no literal.
    pub(super) fn into_json(self) -> String {
        let text = self.text;
        let mut reader = Reader { chars: text.chars().peekable(), out: String::new() };
        if reader.value(0).is_some() && reader.next_visible().is_none() {
            return reader.out;
        }
        let mut quoted = String::new();
        json::write_string(text.trim(), &mut quoted);
        quoted
    }
}

/// Reads one literal and writes it as `json.dumps` would. None: it is none.
struct Reader<'t> {
    chars: Peekable<Chars<'t>>,
    out: String,
}

impl Reader<'_> {
    fn next_visible(&mut self) -> Option<char> {
        while self.chars.next_if(|c| c.is_whitespace()).is_some() {}
        self.chars.peek().copied()
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        match self.next_visible().filter(|_| depth <= DEPTH)? {
            '"' | '\'' => self.string(),
            '[' => self.items(']', depth),
            '(' => self.items(')', depth),
            '{' => self.members(depth),
            _ => self.word(),
        }
    }

    /// A list, or a tuple, which JSON has as a list too.
    fn items(&mut self, close: char, depth: usize) -> Option<()> {
        self.sequence(close, ('[', ']'), |reader| reader.value(depth + 1))
    }

    fn members(&mut self, depth: usize) -> Option<()> {
        self.sequence('}', ('{', '}'), |reader| {
            reader.next_visible().filter(|c| matches!(c, '"' | '\''))?;
            reader.string()?;
            reader.next_visible().filter(|c| *c == ':')?;
            reader.chars.next();
            reader.out.push_str(": ");
            reader.value(depth + 1)
        })
    }

    /// What stands between brackets, with commas between; one behind the last is none.
    fn sequence(
        &mut self,
        close: char,
        (open_json, close_json): (char, char),
        mut item: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<()> {
        self.chars.next();
        self.out.push(open_json);
        let mut first = true;
        while self.next_visible()? != close {
            if !first {
                self.out.push_str(", ");
            }
            first = false;
            item(self)?;
            if self.next_visible()? == ',' {
                self.chars.next();
            } else if self.next_visible()? != close {
                return None;
            }
        }
        self.chars.next();
        self.out.push(close_json);
        Some(())
    }

    /// A number, `True`, `False` or `None`; JSON's words too, since models mix them up.
    fn word(&mut self) -> Option<()> {
        let mut word = String::new();
        let part = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_');
        while let Some(c) = self.chars.next_if(part) {
            word.push(c);
        }
        self.out.push_str(match word.as_str() {
            "True" | "true" => "true",
            "False" | "false" => "false",
            "None" | "null" => "null",
            number => {
                serde_json::from_str::<serde_json::Number>(number).ok()?;
                number
            }
        });
        Some(())
    }

    /// One string, or several in a row, which Python joins.
    fn string(&mut self) -> Option<()> {
        let mut text = String::new();
        while let Some(quote) = self.next_visible().filter(|c| matches!(c, '"' | '\'')) {
            self.chars.next();
            loop {
                match self.chars.next()? {
                    '\\' => self.escape(&mut text)?,
                    c if c == quote => break,
                    c => text.push(c),
                }
            }
        }
        json::write_string(&text, &mut self.out);
        Some(())
    }

    fn escape(&mut self, into: &mut String) -> Option<()> {
        let c = match self.chars.next()? {
            '\n' => return Some(()),
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            '0' => '\0',
            'x' => self.code(2)?,
            'u' => self.code(4)?,
            'U' => self.code(8)?,
            c @ ('\\' | '"' | '\'') => c,
            // Python leaves the backslash where it means nothing.
            other => {
                into.push('\\');
                other
            }
        };
        into.push(c);
        Some(())
    }

    fn code(&mut self, digits: usize) -> Option<char> {
        let digits: String = self.chars.by_ref().take(digits).collect();
        let code = u32::from_str_radix(&digits, 16).ok()?;
        Some(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
    }
}

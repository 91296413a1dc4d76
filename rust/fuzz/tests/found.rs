//! What `make fuzz` found, as inputs.

use turnwire_fuzz::items;

/// gpt-oss writes leading instructions into one message, later ones each into its own: a chain that
/// had only instructions, and got more, was another prompt than the same items at once.
#[test]
fn leading_instructions_go_on_over_turns() {
    for model in 'a'..='v' {
        let script = format!(
            "m{model}\ns\"Be brief.\"\n\
             w[{{\"role\":\"system\",\"content\":\"a\"}},{{\"role\":\"developer\",\"content\":\"b\"}}]\n\
             w[{{\"role\":\"developer\",\"content\":\"c\"}}]\n\
             w[{{\"role\":\"system\",\"content\":\"d\"}},{{\"role\":\"user\",\"content\":\"e\"}}]\n\
             g[{{\"role\":\"system\",\"content\":\"f\"}},{{\"role\":\"user\",\"content\":\"g\"}}]"
        );
        items::run(script.as_bytes());
    }
}

#pragma once

#include <string>
#include <string_view>

namespace sft::spec {

// The text of `sftctl explain KEY`: type, default, range, spellings and meaning. KEY may be an
// alias or a table, which explains each of its keys. Empty when nothing is called so.
std::string ExplainKey(std::string_view key);

// The text of `sftctl explain`: one line for each key.
std::string ExplainAll();

// docs/config.md, whole.
std::string ConfigMarkdown();

}  // namespace sft::spec

#pragma once

#include <string>
#include <string_view>

namespace sft::spec {

// The text of `sftctl explain KEY`: type, default, range, spellings and meaning. KEY may be an
// alias, or a table, which explains each of its keys. Empty when there is no such key or table.
std::string ExplainKey(std::string_view key);

// The text of `sftctl explain`: one line for each key.
std::string ExplainAll();

// The whole of docs/config.md.
std::string ConfigMarkdown();

}  // namespace sft::spec

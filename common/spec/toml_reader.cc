#include "common/spec/toml_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/json.h"
#include "common/base/toml_limits.h"
#include "common/base/toml_plus_plus.h"

namespace sft::spec {
namespace {

std::string KindName(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::date:
      return "a date";
    case toml::node_type::time:
      return "a time";
    case toml::node_type::date_time:
      return "a date and time";
    case toml::node_type::array:
      return node.is_array_of_tables() ? "a list of tables" : "a list of other things than strings";
    default:
      return "something else";
  }
}

// A table {path = "a.jsonl", weight = 0.5} of a list as the text that such items have.
std::optional<std::string> FileItem(const toml::node& node) {
  const toml::table* const table = node.as_table();
  const toml::node* const path = table != nullptr ? table->get("path") : nullptr;
  if (path == nullptr || !path->is_string()) return std::nullopt;
  std::string text = path->as_string()->get();
  for (const auto& [key, value] : *table) {
    if (key.str() == "path") continue;
    if (const auto* whole = value.as_integer()) {
      text += fmt::format(" {}={}", key.str(), whole->get());
    } else if (const auto* number = value.as_floating_point()) {
      text += fmt::format(" {}={}", key.str(), number->get());
    } else {
      return std::nullopt;
    }
  }
  return text;
}

// The JSON of a table of a list that has a type, such as [[evaluate.grader]].
std::optional<nlohmann::json> JsonOf(const toml::node& node) {
  if (const auto* v = node.as_boolean()) return v->get();
  if (const auto* v = node.as_integer()) return v->get();
  if (const auto* v = node.as_floating_point()) return v->get();
  if (const auto* v = node.as_string()) return v->get();
  nlohmann::json made;
  if (const auto* list = node.as_array()) {
    made = nlohmann::json::array();
    for (const toml::node& item : *list) {
      std::optional<nlohmann::json> inner = JsonOf(item);
      if (!inner) return std::nullopt;
      made.push_back(*std::move(inner));
    }
    return made;
  }
  const toml::table* const table = node.as_table();
  if (table == nullptr) return std::nullopt;
  made = nlohmann::json::object();
  for (const auto& [key, value] : *table) {
    std::optional<nlohmann::json> inner = JsonOf(value);
    if (!inner) return std::nullopt;
    made[std::string(key.str())] = *std::move(inner);
  }
  return made;
}

std::optional<std::string> TableItem(const toml::node& node) {
  const toml::table* const table = node.as_table();
  if (table == nullptr || table->contains("path") || !table->contains("type"))
    return FileItem(node);
  const std::optional<nlohmann::json> json = JsonOf(node);
  return json ? std::optional(DumpJson(*json)) : std::nullopt;
}

std::optional<Value> Scalar(const toml::node& node) {
  if (const auto* v = node.as_boolean()) return Value(v->get());
  if (const auto* v = node.as_integer()) return Value(v->get());
  if (const auto* v = node.as_floating_point()) return Value(v->get());
  if (const auto* v = node.as_string()) return Value(v->get());
  if (const auto* list = node.as_array()) {
    std::vector<std::string> items;
    for (const toml::node& item : *list) {
      const auto* text = item.as_string();
      std::optional<std::string> file = text != nullptr ? text->get() : TableItem(item);
      if (!file.has_value()) return std::nullopt;
      items.push_back(*std::move(file));
    }
    return Value(std::move(items));
  }
  return std::nullopt;
}

void Walk(const toml::table& table, const std::string& prefix, std::vector<RawEntry>* out) {
  std::vector<std::pair<const toml::key*, const toml::node*>> nodes;
  for (const auto& [key, node] : table) nodes.emplace_back(&key, &node);
  std::sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) {
    return a.first->source().begin < b.first->source().begin;
  });
  for (const auto& [key, node] : nodes) {
    RawEntry entry;
    entry.key = prefix + std::string(key->str());
    entry.line = static_cast<int>(key->source().begin.line);
    if (const toml::table* inner = node->as_table()) {
      entry.is_table = true;
      const std::string inner_prefix = entry.key + ".";
      out->push_back(std::move(entry));
      Walk(*inner, inner_prefix, out);
      continue;
    }
    entry.value = Scalar(*node);
    if (!entry.value) entry.kind = KindName(*node);
    out->push_back(std::move(entry));
  }
}

}  // namespace

std::variant<std::vector<RawEntry>, ReadError> ReadToml(std::string_view text) {
  if (auto excess = FindTomlExcess(text)) {
    return ReadError{excess->line, std::move(excess->message)};
  }
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    return ReadError{static_cast<int>(parsed.error().source().begin.line),
                     fmt::format("is not TOML: {}", parsed.error().description())};
  }
  std::vector<RawEntry> entries;
  Walk(parsed.table(), "", &entries);
  return entries;
}

}  // namespace sft::spec

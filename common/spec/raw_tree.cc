#include "common/spec/raw_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>

#include "common/base/json.h"
#include "common/base/toml_limits.h"
#include "common/base/utf8.h"

namespace sft::spec {
namespace {

// Values, lists and tables of a text together; a list of a key has at most 1,000 items.
constexpr size_t kMaxNodes = 32'768;
constexpr size_t kMostShown = 80;

std::string ScalarText(const Value& value, const std::optional<std::string>& plain) {
  return plain.has_value() ? *plain : ToText(value);
}

}  // namespace

bool RawTree::Refuse(int line, std::string message) {
  if (error_.message.empty()) error_ = {line, std::move(message)};
  return false;
}

RawTree::Node* RawTree::Put(Kind kind, int line) {
  if (++nodes_ > kMaxNodes) {
    Refuse(line, fmt::format("has more than {} values", kMaxNodes));
    return nullptr;
  }
  if (open_.empty()) {
    if (begun_) return nullptr;  // the parsers give one root
    begun_ = true;
    if (kind != Kind::kTable && kind != Kind::kNull) {
      Refuse(line, "must be sections and keys with values, such as job: with model: below it");
      return nullptr;
    }
    root_.kind = Kind::kTable;
    return &root_;
  }
  Node& node = open_.back().node->items.emplace_back();
  node.kind = kind;
  return &node;
}

bool RawTree::Open(Kind kind, int line) {
  if (open_.size() >= static_cast<size_t>(kMaxTomlParts)) {
    return Refuse(line, fmt::format("nests more than {} levels", kMaxTomlParts));
  }
  Node* const node = Put(kind, line);
  if (node == nullptr) return false;
  open_.push_back({node, {}});
  return true;
}

bool RawTree::Close() {
  open_.pop_back();
  return true;
}

bool RawTree::Key(std::string_view name, int line) {
  if (name.size() > static_cast<size_t>(kMaxTomlNameBytes)) {
    return Refuse(line, fmt::format("has a name of more than {} bytes", kMaxTomlNameBytes));
  }
  if (name.empty()) return Refuse(line, "has a key without a name");
  if (++names_ > static_cast<size_t>(kMaxTomlNames)) {
    return Refuse(line, fmt::format("has more than {} names of keys and tables", kMaxTomlNames));
  }
  Level& level = open_.back();
  Name key{std::string(name), line};
  const auto [at, is_new] = level.seen.insert(key);
  if (!is_new) {
    return Refuse(line, fmt::format("gives \"{}\" twice, here and in line {}; keep one",
                                    ToUtf8(name.substr(0, kMostShown)), at->line));
  }
  level.node->names.push_back(std::move(key));
  return true;
}

bool RawTree::Null(int line) { return Put(Kind::kNull, line) != nullptr; }

bool RawTree::Scalar(Value value, int line, std::optional<std::string> plain) {
  Node* const node = Put(Kind::kScalar, line);
  if (node == nullptr) return false;
  node->value = std::move(value);
  node->plain = std::move(plain);
  return true;
}

bool RawTree::Other(std::string kind, int line, std::optional<std::string> plain) {
  Node* const node = Put(Kind::kOther, line);
  if (node == nullptr) return false;
  node->other = std::move(kind);
  node->plain = std::move(plain);
  return true;
}

// A table {path: a.jsonl, weight: 0.5} of a list as the text that such items have.
std::optional<std::string> RawTree::FileItem(const Node& node) {
  std::optional<std::string> path;
  std::string rest;
  for (size_t i = 0; i < node.items.size(); ++i) {
    const Node& item = node.items[i];
    if (item.kind != Kind::kScalar) return std::nullopt;
    const bool number =
        std::holds_alternative<int64_t>(item.value) || std::holds_alternative<double>(item.value);
    const bool text = std::holds_alternative<std::string>(item.value) || item.plain;
    if (node.names[i].text == "path" && text) {
      path = ScalarText(item.value, item.plain);
    } else if (number) {
      rest += fmt::format(" {}={}", node.names[i].text, ToText(item.value));
    } else {
      return std::nullopt;
    }
  }
  if (path.has_value()) *path += rest;
  return path;
}

// The JSON of a table of a list that has a type, such as
// [[evaluate.grader]].
std::optional<std::string> RawTree::TableItem(const Node& node) {
  const auto names = [&node](std::string_view name) {
    return std::any_of(node.names.begin(), node.names.end(),
                       [&](const Name& each) { return each.text == name; });
  };
  if (names("path") || !names("type")) return FileItem(node);
  const std::optional<nlohmann::json> json = JsonOf(node);
  return json ? std::optional(DumpJson(*json)) : std::nullopt;
}

std::optional<nlohmann::json> RawTree::JsonOf(const Node& node) {
  if (node.kind == Kind::kOther) return std::nullopt;
  if (node.kind == Kind::kNull) return nlohmann::json(nullptr);
  if (node.kind == Kind::kScalar) {
    return std::visit([](const auto& value) { return nlohmann::json(value); }, node.value);
  }
  nlohmann::json made =
      node.kind == Kind::kList ? nlohmann::json::array() : nlohmann::json::object();
  for (size_t i = 0; i < node.items.size(); ++i) {
    const Node& item = node.items[i];
    if (node.kind == Kind::kList && item.kind == Kind::kScalar && item.plain) {
      // The lists of such tables hold texts.
      made.push_back(*item.plain);
      continue;
    }
    std::optional<nlohmann::json> inner = JsonOf(item);
    if (!inner) return std::nullopt;
    if (node.kind == Kind::kList) {
      made.push_back(*std::move(inner));
    } else {
      made[node.names[i].text] = *std::move(inner);
    }
  }
  return made;
}

void RawTree::Take(const Node& list, RawEntry* entry) {
  std::vector<std::string> items;
  for (const Node& item : list.items) {
    std::optional<std::string> text;
    const bool quoted = std::holds_alternative<std::string>(item.value);
    if (item.kind == Kind::kScalar && (quoted || item.plain)) {
      text = ScalarText(item.value, item.plain);
    } else if (item.kind == Kind::kTable) {
      text = TableItem(item);
    }
    if (!text.has_value()) {
      const bool tables = std::all_of(list.items.begin(), list.items.end(),
                                      [](const Node& each) { return each.kind == Kind::kTable; });
      entry->kind = tables ? "a list of tables" : "a list of other things than strings";
      return;
    }
    items.push_back(*std::move(text));
  }
  entry->value = std::move(items);
}

void RawTree::Walk(const Node& table, const std::string& prefix, std::vector<RawEntry>* out) {
  for (size_t i = 0; i < table.items.size(); ++i) {
    const Node& node = table.items[i];
    RawEntry entry;
    entry.key = prefix + table.names[i].text;
    entry.line = table.names[i].line;
    entry.is_table = node.kind == Kind::kTable;
    entry.is_null = node.kind == Kind::kNull;
    if (entry.is_null) entry.kind = "null";
    if (node.kind == Kind::kOther) {
      entry.kind = node.other;
      entry.plain = node.plain;
    }
    if (node.kind == Kind::kList) Take(node, &entry);
    if (node.kind == Kind::kScalar) {
      entry.value = node.value;
      entry.plain = node.plain;
    }
    const std::string inner = entry.key + ".";
    out->push_back(std::move(entry));
    if (node.kind == Kind::kTable) Walk(node, inner, out);
  }
}

std::vector<RawEntry> RawTree::Entries() const {
  std::vector<RawEntry> entries;
  Walk(root_, "", &entries);
  return entries;
}

}  // namespace sft::spec

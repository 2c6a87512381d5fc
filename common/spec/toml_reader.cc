#include "common/spec/toml_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/toml_limits.h"
#include "common/base/toml_plus_plus.h"
#include "common/spec/raw_tree.h"

namespace sft::spec {
namespace {

int LineOf(const toml::source_region& place) { return static_cast<int>(place.begin.line); }

// Of what no key takes.
std::string KindName(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::date:
      return "a date";
    case toml::node_type::time:
      return "a time";
    case toml::node_type::date_time:
      return "a date and time";
    default:
      return "something else";
  }
}

bool Add(const toml::node& node, RawTree& tree);

// In the order of the file's lines.
bool AddTable(const toml::table& table, RawTree& tree) {
  std::vector<std::pair<const toml::key*, const toml::node*>> nodes;
  for (const auto& [key, node] : table) nodes.emplace_back(&key, &node);
  std::sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) {
    return a.first->source().begin < b.first->source().begin;
  });
  for (const auto& [key, node] : nodes) {
    if (!tree.Key(key->str(), LineOf(key->source())) || !Add(*node, tree)) return false;
  }
  return true;
}

bool Add(const toml::node& node, RawTree& tree) {
  const int line = LineOf(node.source());
  if (const auto* v = node.as_boolean()) return tree.Scalar(v->get(), line);
  if (const auto* v = node.as_integer()) return tree.Scalar(v->get(), line);
  if (const auto* v = node.as_floating_point()) return tree.Scalar(v->get(), line);
  if (const auto* v = node.as_string()) return tree.Scalar(v->get(), line);
  if (const auto* table = node.as_table()) {
    return tree.OpenTable(line) && AddTable(*table, tree) && tree.Close();
  }
  if (const auto* date = node.as_date()) {
    const toml::date& day = date->get();
    return tree.Other(KindName(node), line,
                      fmt::format("{:04}-{:02}-{:02}", day.year, day.month, day.day));
  }
  const auto* const list = node.as_array();
  if (list == nullptr) return tree.Other(KindName(node), line);
  if (!tree.OpenList(line)) return false;
  for (const toml::node& item : *list) {
    if (!Add(item, tree)) return false;
  }
  return tree.Close();
}

}  // namespace

std::variant<std::vector<RawEntry>, ReadError> ReadToml(std::string_view text) {
  if (auto excess = FindTomlExcess(text)) {
    return ReadError{excess->line, std::move(excess->message)};
  }
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    return ReadError{LineOf(parsed.error().source()),
                     fmt::format("is not TOML: {}", parsed.error().description())};
  }
  RawTree tree;
  if (!Add(parsed.table(), tree)) return tree.error();
  return tree.Entries();
}

}  // namespace sft::spec

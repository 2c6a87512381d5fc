#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/raw_entry.h"

namespace sft::spec {

// Builds the entries of a job file from what its parser finds, one after the other, within the
// limits of common/base/toml_limits.h. Each call is false once the text is
// refused; error() then says why.
class RawTree {
 public:
  bool OpenTable(int line) { return Open(Kind::kTable, line); }
  bool OpenList(int line) { return Open(Kind::kList, line); }
  bool Close();
  // The key of what comes next. A key that its table has already is refused.
  bool Key(std::string_view name, int line);
  bool Null(int line);
  bool Scalar(Value value, int line, std::optional<std::string> plain = std::nullopt);
  // What is no value of most keys, such as a date. `plain`: the text that it stands for where a key
  // takes it.
  bool Other(std::string kind, int line, std::optional<std::string> plain = std::nullopt);
  bool Refuse(int line, std::string message);

  const ReadError& error() const { return error_; }
  // As ReadToml gives them. The text must have been read to its end.
  std::vector<RawEntry> Entries() const;

 private:
  enum class Kind { kNull, kScalar, kList, kTable, kOther };
  struct Name {
    std::string text;
    int line = 0;
    auto operator<=>(const Name& other) const { return text <=> other.text; }
    bool operator==(const Name& other) const { return text == other.text; }
  };
  struct Node {
    Kind kind = Kind::kNull;
    Value value;
    std::optional<std::string> plain;
    std::string other;        // kOther: what it is
    std::vector<Name> names;  // kTable: of its items
    std::vector<Node> items;
  };
  struct Level {
    Node* node;
    std::set<Name> seen;
  };

  Node* Put(Kind kind, int line);
  bool Open(Kind kind, int line);
  static std::optional<std::string> FileItem(const Node& node);
  static std::optional<nlohmann::json> JsonOf(const Node& node);
  static std::optional<std::string> TableItem(const Node& node);
  static void Take(const Node& list, RawEntry* entry);
  static void Walk(const Node& table, const std::string& prefix, std::vector<RawEntry>* out);

  Node root_;
  bool begun_ = false;
  std::vector<Level> open_;
  size_t nodes_ = 0, names_ = 0;
  ReadError error_;
};

}  // namespace sft::spec

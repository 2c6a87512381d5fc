#pragma once

#include <string>
#include <vector>

namespace sft::client {

// A text table: columns as wide as their widest cell, two spaces between; the last one is not
// padded. A cell is always printed on one line. For people: scripts use --json.
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  void Add(std::vector<std::string> row);
  std::string Render() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace sft::client

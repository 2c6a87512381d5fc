#pragma once

#include <string>
#include <vector>

namespace sft::client {

// Columns as wide as their widest cell, two spaces between; the last one is not padded. A cell is
// one line, whatever it holds. Made for people: scripts use --json.
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  void Add(std::vector<std::string> row);
  std::string Render() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace sft::client

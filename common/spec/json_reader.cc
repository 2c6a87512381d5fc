#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "common/base/utf8.h"
#include "common/spec/job_file_reader.h"
#include "common/spec/raw_tree.h"

namespace sft::spec {
namespace {

// Gives a text to the parser byte by byte and counts the lines that it has taken.
class CountingText {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingText(const char* at, int* line) : at_(at), line_(line) {}
  reference operator*() const { return *at_; }
  CountingText& operator++() {
    if (*at_++ == '\n') ++*line_;
    return *this;
  }
  bool operator==(const CountingText& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  int* line_;
};

// Passes what the parser finds on to a RawTree.
class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  JsonEvents(RawTree& tree, const int& line) : tree_(tree), line_(line) {}

  bool null() override { return tree_.Null(line_); }
  bool boolean(bool value) override { return tree_.Scalar(value, line_); }
  bool number_integer(number_integer_t value) override { return tree_.Scalar(value, line_); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return tree_.Scalar(static_cast<double>(value), line_);
    }
    return tree_.Scalar(static_cast<int64_t>(value), line_);
  }
  bool number_float(number_float_t value, const std::string&) override {
    return tree_.Scalar(value, line_);
  }
  bool string(std::string& value) override { return tree_.Scalar(std::move(value), line_); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return tree_.OpenTable(line_); }
  bool start_array(std::size_t) override { return tree_.OpenList(line_); }
  bool end_object() override { return tree_.Close(); }
  bool end_array() override { return tree_.Close(); }
  bool key(std::string& name) override { return tree_.Key(name, line_); }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 9: ..."
    constexpr size_t kMostBytes = 300;
    std::string_view what = error.what();
    if (const size_t end = what.find("] "); end != what.npos) what.remove_prefix(end + 2);
    if (const size_t end = what.find(": "); end != what.npos) what.remove_prefix(end + 2);
    return tree_.Refuse(line_, fmt::format("is not JSON: {}", ToUtf8(what.substr(0, kMostBytes))));
  }

 private:
  RawTree& tree_;
  const int& line_;
};

}  // namespace

std::variant<std::vector<RawEntry>, ReadError> ReadJson(std::string_view text) {
  RawTree tree;
  int line = 1;
  JsonEvents events(tree, line);
  const bool read = nlohmann::json::sax_parse(
      CountingText(text.data(), &line), CountingText(text.data() + text.size(), &line), &events,
      nlohmann::json::input_format_t::json, /*strict=*/true,
      /*ignore_comments=*/true);
  if (!read) return tree.error();
  return tree.Entries();
}

}  // namespace sft::spec

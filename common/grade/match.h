#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace re2 {
class RE2;
}

// Graders that say whether an answer is right, and the overlap of its words.

namespace sft::grade {

// Equal but for white space at both ends.
bool ExactMatch(std::string_view answer, std::string_view reference);

// SQuAD's form of a text: lower case, without ASCII punctuation and the articles a, an and the, its
// words one space apart.
std::u32string Normalized(std::string_view text);
// F1 of the words of both texts in that form, from 0 to 1.
double WordF1(std::string_view answer, std::string_view reference);

// The number that a text ends with: the first after "####" where the text has that, else the last
// of the text. Commas between digits do not count. Empty: it has none.
absl::StatusOr<double> NumberIn(std::string_view text);
// Equal numbers, to a relative 1e-6. FAILED_PRECONDITION: the reference has none.
absl::StatusOr<bool> SameNumber(std::string_view answer, std::string_view reference);

// Whether the answer is JSON; a fence of Markdown around it is left out.
bool IsJson(std::string_view answer);
// The same value in JSON, whatever the order of members; 1 equals 1.0. FAILED_PRECONDITION: the
// reference is none.
absl::StatusOr<bool> SameJson(std::string_view answer, std::string_view reference);

// A regular expression in RE2's syntax, whose time grows with the text alone.
class Pattern {
 public:
  // INVALID_ARGUMENT says what is wrong with the expression.
  static absl::StatusOr<Pattern> Make(const std::string& expression);
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  // Whether the answer holds what the expression says. Of an expression with a group, what the
  // group holds in the first match has to be the reference, but for white space at both ends.
  bool Passes(std::string_view answer, std::string_view reference) const;
  // Whether the expression has a group.
  bool has_group() const;
  // What the group holds in the last match of the text; nothing: there is no match.
  std::optional<std::string> Last(std::string_view text) const;

 private:
  explicit Pattern(std::unique_ptr<re2::RE2> expression);
  std::unique_ptr<re2::RE2> expression_;
};

}  // namespace sft::grade

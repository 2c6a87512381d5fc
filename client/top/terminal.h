#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "client/top/view.h"
#include "common/base/status.h"

namespace sft::client::top {

// The terminal of this process, as a screen of its own; what it showed before is back when this
// ends, also when the process does by a fault. One at a time, used by the main thread alone. Hides
// ncurses, whose names are words of everybody.
class Terminal {
 public:
  // FAILED_PRECONDITION where the terminal's type (TERM) is not known here. `colours`: as far as
  // the terminal has them.
  static absl::StatusOr<std::unique_ptr<Terminal>> Open(bool colours);
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  Screen size() const;
  // As many rows as size() has. Only what has changed is sent.
  void Show(const std::vector<Row>& rows);
  // The next key, as OnKey takes it; 0: none came in that time, or the size has changed.
  int ReadKey(std::chrono::milliseconds patience);

 private:
  Terminal() = default;

  int errors_ = -1;  // a copy of standard error, which others write to meanwhile
};

// Whether the locale of this process has more than ASCII.
bool LocaleHasUnicode();

}  // namespace sft::client::top

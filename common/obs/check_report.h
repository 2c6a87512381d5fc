#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace sft::obs {

// How one thing stands: warn is what works but should be looked at.
enum class CheckLevel { kOk, kWarn, kFail };

// What `sft-server check` and `sft-worker check` found: a line for each thing they looked at, with
// what to do where it is not in order.
class CheckReport {
 public:
  void Ok(std::string_view name, std::string text);
  void Warn(std::string_view name, std::string text, std::string advice);
  void Fail(std::string_view name, std::string text, std::string advice);
  // Ok with `text`, or a failure with the status's message.
  void Take(std::string_view name, const absl::Status& status, std::string text,
            std::string advice);

  // "ok    disk          41 GB of 252 GB free", with the advice on a line of its own below.
  std::string Text() const;
  // An object with `ok` and `checks`: an array of `name, level, text, advice`.
  std::string Json() const;
  // 0, or 1 when something failed.
  int ExitCode() const;

 private:
  struct Line {
    CheckLevel level;
    std::string name, text, advice;
  };
  std::vector<Line> lines_;
};

}  // namespace sft::obs

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace sft::obs {

// The result of one check; kWarn means that it works but should be looked at.
enum class CheckLevel { kOk, kWarn, kFail };

// Report of `sft-server check` and `sft-worker check`: a line per check, with advice where
// something is wrong.
class CheckReport {
 public:
  void Ok(std::string_view name, std::string text);
  void Warn(std::string_view name, std::string text, std::string advice);
  void Fail(std::string_view name, std::string text, std::string advice);
  // Adds an ok line with `text`, or a failure with the status's message.
  void Take(std::string_view name, const absl::Status& status, std::string text,
            std::string advice);

  // The report as lines, "ok    disk          41 GB of 252 GB free", with any advice on a line of
  // its own below.
  std::string Text() const;
  // The report as an object with `ok` and `checks`: an array of `name, level, text, advice`.
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

#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "worker/rank/device.h"

namespace sft::rank {

// What a job that answers makes of its rows: a line for each number from 0, which depends on the
// number alone. Its functions throw engine errors. Not thread-safe.
class RowTask {
 public:
  RowTask() = default;
  virtual ~RowTask() = default;
  RowTask(const RowTask&) = delete;
  RowTask& operator=(const RowTask&) = delete;

  // How many lines all processes make together.
  virtual int64_t lines() const = 0;
  // What decides the lines and how they are divided, for AnswerPart.
  virtual std::string Identity(int ranks) const = 0;
  // Where the row of a line stands, for people: "prompts.jsonl:7".
  virtual std::string PlaceOf(int64_t number) const = 0;

  // Checks the rows of the lines [first, last), then loads what makes them.
  virtual void Open(int64_t first, int64_t last, const Device& device) = 0;
  // One forward; gives the lines that are next in order, without a newline. False when all were
  // given.
  using Take = std::function<void(const std::string& line)>;
  virtual bool Step(const Take& take) = 0;

  // Writes what the job delivers to `folder`, made of the file with all lines, and returns the
  // kind of that artifact.
  virtual std::string Deliver(const std::string& all_lines, const std::string& folder) = 0;
};

}  // namespace sft::rank

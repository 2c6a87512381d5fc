#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "common/spec/resolve.h"

// Small job files and lookups for the tests of this folder.

namespace sft::spec {

// The smallest valid file; `rest` follows it.
inline std::string Minimal(std::string_view rest = "") {
  return "[job]\nmodel = \"m\"\ndata = \"d.jsonl\"\n[compute]\ngpu_type = \"H100\"\n" +
         std::string(rest);
}

inline Resolution ResolveText(std::string_view text, const std::vector<Override>& overrides = {}) {
  return Resolve(text, "job.toml", overrides);
}

inline Override Set(std::string key, std::string value) {
  return {std::move(key), std::move(value), "--set", OverrideKind::kSet};
}
inline Override Flag(std::string key, std::string value, std::string flag) {
  return {std::move(key), std::move(value), std::move(flag), OverrideKind::kFlag};
}
inline Override Env(const std::string& name, std::string value) {
  return {name, std::move(value), name, OverrideKind::kEnvironment};
}

// "key:line: message" of every problem, one per line.
inline std::string Describe(const std::vector<Problem>& problems) {
  std::string text;
  for (const Problem& p : problems) {
    text += p.key + ":" + std::to_string(p.line) + ": " + p.message + "\n";
  }
  return text;
}

inline std::string OriginOf(const Resolution& resolution, std::string_view key) {
  for (const ResolvedValue& value : resolution.values) {
    if (value.key == key) return value.origin;
  }
  return "(absent)";
}
inline std::string TextOf(const Resolution& resolution, std::string_view key) {
  for (const ResolvedValue& value : resolution.values) {
    if (value.key == key) return value.text;
  }
  return "(absent)";
}

// A file with one problem: `text` is appended to that of Minimal.
struct WrongFile {
  std::string_view name;
  std::string text;
  std::string_view key;
  std::string_view says;

  friend void PrintTo(const WrongFile& w, std::ostream* out) { *out << w.name; }
};

inline void ExpectOneProblem(const WrongFile& wrong) {
  const Resolution r = ResolveText(Minimal(wrong.text));
  ASSERT_EQ(r.problems.size(), 1u) << Describe(r.problems);
  EXPECT_EQ(r.problems[0].key, wrong.key);
  EXPECT_GT(r.problems[0].line, 0);
  EXPECT_THAT(r.problems[0].message, ::testing::HasSubstr(std::string(wrong.says)));
}

}  // namespace sft::spec

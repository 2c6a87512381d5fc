#include "common/spec/template_settings.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/base/status.h"
#include "common/spec/job_json.h"
#include "common/spec/job_protocol.h"
#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Resolution ResolveOn(std::string_view day, const std::string& rest) {
  return Resolve(Minimal(rest), "job.toml", {}, {.day = std::string(day)});
}

std::string ArgumentsOf(const std::vector<std::string>& items) {
  const auto arguments = TemplateArguments(items);
  return arguments.ok() ? DumpJson(*arguments) : std::string(Message(arguments.status()));
}

TEST(TemplateSettingsTest, AJobHasTheDayOfItsSubmissionUnlessItGivesOne) {
  const Resolution silent = ResolveOn("2026-11-26", "");
  EXPECT_EQ(silent.spec.data.template_date, "2026-11-26");
  EXPECT_EQ(OriginOf(silent, "data.template_date"), "derived: the day of the submission");
  const Resolution given = ResolveOn("2026-11-26", "[data]\ntemplate_date = \"2024-02-29\"\n");
  EXPECT_EQ(given.spec.data.template_date, "2024-02-29");
  EXPECT_EQ(OriginOf(given, "data.template_date"), "job.toml:7");
  EXPECT_EQ(ResolveOn("", "").spec.data.template_date, "");
  EXPECT_EQ(ResolveOn("", "[data]\ntemplate_date = 2024-02-29\n").spec.data.template_date,
            "2024-02-29")
      << "a date of TOML";
  EXPECT_FALSE(ResolveOn("", "[data]\ngroup_by = 2024-02-29\n").ok());
}

TEST(TemplateSettingsTest, WhoServesAnswersOnManyDays) {
  const std::string serve =
      "[job]\nmodel = \"m\"\nkind = \"serve\"\n[compute]\ngpu_type = \"H100\"\n"
      "[scheduling]\ntime_limit = \"8h\"\n[data]\n";
  const ResolveOptions options{.day = "2026-11-26"};
  const Resolution silent = Resolve(serve, "job.toml", {}, options);
  EXPECT_TRUE(silent.ok()) << Describe(silent.problems);
  EXPECT_EQ(silent.spec.data.template_date, "");
  const Resolution given =
      Resolve(serve + "template_date = \"2025-01-01\"\n", "job.toml", {}, options);
  EXPECT_TRUE(given.ok()) << Describe(given.problems);
  EXPECT_EQ(given.spec.data.template_date, "2025-01-01");
}

TEST(TemplateSettingsTest, WhatIsNoDayIsRefusedByItsKey) {
  for (const char* wrong : {"26.11.2026", "2026-02-29", "2026-11-31", "2026-13-01", "2026-1-1",
                            "2026-11- 1", "today", "2026-11-26T00:00:00Z"}) {
    const Resolution r =
        ResolveOn("2026-11-26", fmt::format("[data]\ntemplate_date = \"{}\"\n", wrong));
    ASSERT_EQ(r.problems.size(), 1U) << wrong;
    EXPECT_EQ(r.problems[0].key, "data.template_date");
    EXPECT_EQ(r.problems[0].line, 7);
    EXPECT_THAT(r.problems[0].message, HasSubstr("is no day of the calendar written as"));
  }
}

TEST(TemplateSettingsTest, ArgumentsAreJsonOrElseText) {
  EXPECT_EQ(ArgumentsOf({"reasoning_effort=high", "enable_thinking=false", "n=2", "s=\"true\"",
                         "builtin_tools=[\"browser\"]", "empty="}),
            R"({"reasoning_effort":"high","enable_thinking":false,"n":2,"s":"true",)"
            R"("builtin_tools":["browser"],"empty":""})");
  EXPECT_EQ(ArgumentsOf({}), "{}");
}

TEST(TemplateSettingsTest, AnArgumentThatCannotBeGivenIsNamed) {
  EXPECT_THAT(ArgumentsOf({"reasoning_effort"}), HasSubstr("is not NAME=VALUE"));
  EXPECT_THAT(ArgumentsOf({"reasoning-effort=high"}),
              HasSubstr("\"reasoning-effort=high\" is not"));
  EXPECT_THAT(ArgumentsOf({"a=1", "a=2"}), HasSubstr("gives a for the second time"));
  EXPECT_THAT(ArgumentsOf({"messages=[]"}), HasSubstr("messages is given by the rows"));
  const Resolution r = ResolveText(Minimal("[data]\ntemplate_arguments = [\"tools=1\"]\n"));
  ASSERT_EQ(r.problems.size(), 1U);
  EXPECT_EQ(r.problems[0].key, "data.template_arguments");
  EXPECT_EQ(r.problems[0].line, 7);
}

TEST(TemplateSettingsTest, ATableOfArgumentsIsReadInEveryForm) {
  const auto want = ElementsAre("reasoning_effort=high", "enable_thinking=false",
                                "model_identity=\"1\"", "builtin_tools=[\"browser\",\"python\"]");
  const Resolution toml = ResolveText(
      Minimal("[data.template_arguments]\nreasoning_effort = \"high\"\nenable_thinking = false\n"
              "model_identity = \"1\"\nbuiltin_tools = [\"browser\", \"python\"]\n"));
  EXPECT_TRUE(toml.ok()) << Describe(toml.problems);
  EXPECT_THAT(toml.spec.data.template_arguments, want);
  EXPECT_EQ(OriginOf(toml, "data.template_arguments"), "job.toml:6");
  const Resolution yaml = Resolve(
      "job: {model: m, data: d.jsonl}\ncompute: {gpu_type: H100}\ndata:\n"
      "  chat_template_kwargs:\n    reasoning_effort: high\n    enable_thinking: false\n"
      "    model_identity: \"1\"\n    builtin_tools: [browser, python]\n    other: null\n",
      "job.yaml", {});
  EXPECT_TRUE(yaml.ok()) << Describe(yaml.problems);
  EXPECT_THAT(yaml.spec.data.template_arguments, want);
  const Resolution json = Resolve(
      R"({"job": {"model": "m", "data": "d.jsonl"}, "compute": {"gpu_type": "H100"},
          "data": {"template_arguments": {"reasoning_effort": "high", "enable_thinking": false,
                   "model_identity": "1", "builtin_tools": ["browser", "python"]}}})",
      "job.json", {});
  EXPECT_TRUE(json.ok()) << Describe(json.problems);
  EXPECT_THAT(json.spec.data.template_arguments, want);
}

TEST(TemplateSettingsTest, ATableThatHoldsATableIsRefused) {
  const Resolution r = ResolveText(Minimal(
      "[data.template_arguments]\nx = 1\n[data.template_arguments.more]\ny = 2\n[lora]\nr = 8\n"));
  ASSERT_EQ(r.problems.size(), 1U) << Describe(r.problems);
  EXPECT_EQ(r.problems[0].key, "data.template_arguments");
  EXPECT_THAT(r.problems[0].message, HasSubstr("more must be a text, a number, true, false"));
  EXPECT_EQ(r.spec.lora.r, 8) << "what stands behind the table is read";
}

TEST(TemplateSettingsTest, BothComeBackFromTheJobsJson) {
  JobSpec spec;
  spec.data.template_date = "2026-11-26";
  spec.data.template_arguments = {"reasoning_effort=high"};
  const auto back = FromJson(ToJson(spec));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->data.template_date, "2026-11-26");
  EXPECT_THAT(back->data.template_arguments, ElementsAre("reasoning_effort=high"));
}

TEST(TemplateSettingsTest, OlderWorkersMayHaveAJobWhoseTemplatePrintsNoDay) {
  EXPECT_EQ(NeedOf(ResolveOn("2026-11-26", "").spec).protocol, 1);
  const std::string asks = "[data]\nchat_template = \"{{ strftime_now('%Y') }}\"\n";
  EXPECT_THAT(NeedOf(ResolveOn("2026-11-26", asks).spec).keys, ElementsAre("data.template_date"));
  EXPECT_THAT(NeedOf(ResolveOn("", "[data]\ntemplate_arguments = [\"a=1\"]\n").spec).keys,
              ElementsAre("data.template_arguments"));
  EXPECT_THAT(NeedOf(ResolveOn("", "").spec).keys, IsEmpty());
}

TEST(TemplateSettingsTest, AJobOfEachKindHasThem) {
  const Resolution r = ResolveText(
      "[job]\nmodel = \"m\"\nkind = \"generate\"\ndata = \"p.jsonl\"\n[compute]\ngpu_type = "
      "\"H100\"\n[data]\ntemplate_date = \"2026-11-26\"\ntemplate_arguments = [\"a=1\"]\n");
  EXPECT_TRUE(r.ok()) << Describe(r.problems);
}

TEST(TemplateSettingsTest, TheDayOfATimeIsInUtc) {
  EXPECT_EQ(DayOf(*ParseUtc("2026-11-26T23:59:59.9Z")), "2026-11-26");
  EXPECT_TRUE(IsDay("2024-02-29"));
  EXPECT_FALSE(IsDay(""));
}

}  // namespace
}  // namespace sft::spec

#include <fmt/format.h>

#include "common/spec/grader.h"
#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Generate(std::string_view rest = "") {
  return "[job]\nkind = \"generate\"\nmodel = \"m\"\ndata = \"p.jsonl\"\n[compute]\ngpu_type = "
         "\"H100\"\n" +
         std::string(rest);
}

TEST(KindTest, AJobThatAnswersHasItsOwnKeysAndNoneOfTraining) {
  const Resolution job = ResolveText(Generate(
      "gpu_count = 4\n[generate]\nmax_new_tokens = 32\ntemperature = 0.7\ntop_k = 5\ntop_p = 0.9\n"
      "min_p = 0.05\nrepetition_penalty = 1.1\nstop = [\"\\n\\n\", \"END, really\"]\nseed = 7\n"
      "num_samples = 3\nbatch = 8\n"));
  ASSERT_TRUE(job.ok()) << Describe(job.problems);
  EXPECT_TRUE(job.spec.generates());
  EXPECT_EQ(job.spec.compute.gpu_count, 4);
  const JobSpec::Generate& generate = job.spec.generate;
  EXPECT_EQ(generate.max_new_tokens, 32);
  EXPECT_EQ(generate.temperature, 0.7);
  EXPECT_EQ(generate.top_k, 5);
  EXPECT_EQ(generate.top_p, 0.9);
  EXPECT_EQ(generate.min_p, 0.05);
  EXPECT_EQ(generate.repetition_penalty, 1.1);
  EXPECT_THAT(generate.stop, ::testing::ElementsAre("\n\n", "END, really"));
  EXPECT_EQ(generate.seed, 7u);
  EXPECT_EQ(generate.num_samples, 3);
  EXPECT_EQ(generate.batch, 8);
  EXPECT_THAT(job.warnings, IsEmpty());
  EXPECT_EQ(TextOf(job, "lora.r"), "(absent)") << "a dry run shows what the job has";
  EXPECT_EQ(TextOf(job, "hyperparameters.learning_rate"), "(absent)");
  EXPECT_EQ(TextOf(job, "generate.top_k"), "5");
}

TEST(KindTest, ASearchWithBeamsDrawsNothingAndGivesAsManyAnswersAsBeams) {
  const Resolution job = ResolveText(
      Generate("[generate]\nnum_beams = 4\nnum_return_sequences = 3\nlength_penalty = 0.6\n"
               "early_stopping = true\n"));
  ASSERT_TRUE(job.ok()) << Describe(job.problems);
  EXPECT_THAT(job.warnings, IsEmpty());
  EXPECT_EQ(job.spec.generate.num_beams, 4);
  EXPECT_EQ(job.spec.generate.num_samples, 3);
  EXPECT_EQ(job.spec.generate.length_penalty, 0.6);
  EXPECT_EQ(job.spec.generate.early_stopping, EarlyStopping::kYes);
  const auto problems = [](std::string_view keys) {
    return Describe(ResolveText(Generate("[generate]\n" + std::string(keys))).problems);
  };
  EXPECT_EQ(problems("num_beams = 2\nearly_stopping = \"never\"\n"), "");
  EXPECT_EQ(problems("num_beams = 2\nearly_stopping = false\n"), "");
  EXPECT_THAT(problems("num_beams = 2\nearly_stopping = \"soon\"\n"),
              HasSubstr("\"false\", \"true\" or \"never\""));
  EXPECT_THAT(
      problems("num_beams = 2\ntemperature = 0.5\n"),
      HasSubstr("generate.num_beams:8: generate.temperature = 0.5 (job.toml:9) draws tokens"));
  EXPECT_THAT(problems("num_beams = 2\nnum_samples = 3\n"),
              HasSubstr("a search with 2 beams finds 2 answers"));
  EXPECT_THAT(problems("num_beams = 65\n"), HasSubstr("generate.num_beams"));
  const std::string serves = Describe(
      ResolveText("[job]\nkind = \"serve\"\nmodel = \"m\"\n[compute]\ngpu_type = \"H100\"\n"
                  "[scheduling]\ntime_limit = \"1h\"\n[generate]\nnum_beams = 2\n")
          .problems);
  EXPECT_THAT(serves, HasSubstr("generate.num_beams:9: a job of kind = \"serve\" gives its "
                                "answers token by token"));
}

TEST(KindTest, ProgramsThatGradeAreTablesOfTheirOwn) {
  const auto evaluate = [](std::string_view rest) {
    return ResolveText(
        "[job]\nkind = \"evaluate\"\nmodel = \"m\"\ndata = \"p.jsonl\"\n"
        "[compute]\ngpu_type = \"H100\"\n" +
        std::string(rest));
  };
  const std::string good =
      "[[evaluate.grader]]\ntype = \"command\"\nname = \"my_score\"\n"
      "command = [\"/opt/graders/score\", \"a, b\"]\nhigh = 10\n";
  const Resolution job = evaluate(good);
  ASSERT_TRUE(job.ok()) << Describe(job.problems);
  ASSERT_EQ(job.spec.evaluate.grader.size(), 1u);
  const Grader grader = ParseGrader(job.spec.evaluate.grader[0]).value();
  EXPECT_EQ(grader.name, "my_score");
  EXPECT_THAT(grader.command, ::testing::ElementsAre("/opt/graders/score", "a, b"));
  EXPECT_EQ(grader.high, 10);
  EXPECT_EQ(grader.timeout_seconds, 10);
  const auto problems = [&](std::string_view rest) {
    return Describe(evaluate("[[evaluate.grader]]\n" + std::string(rest)).problems);
  };
  constexpr std::string_view kType = "type = \"command\"\n";
  const auto with = [&](std::string_view rest) {
    return problems(std::string(kType) + std::string(rest));
  };
  EXPECT_THAT(Describe(evaluate(good + good).problems), HasSubstr("two graders are called"));
  EXPECT_THAT(problems("type = \"oracle\"\n"),
              HasSubstr("evaluate.grader:7: type: there are \"command\" and \"judge\""));
  EXPECT_THAT(with("name = \"f1\"\n"), HasSubstr("\"f1\" is a metric"));
  EXPECT_THAT(with("name = \"A b\"\n"), HasSubstr("give a name of a-z"));
  EXPECT_THAT(with("name = \"a\"\ncommand = \"rm -r /\"\n"), HasSubstr("command: give a list"));
  EXPECT_THAT(with("name = \"a\"\ncommand = [\"score\"]\n"), HasSubstr("absolute path"));
  EXPECT_THAT(with("name = \"a\"\ncommand = [\"/s\"]\nlow = 2\n"), HasSubstr("has to be above"));
  EXPECT_THAT(with("name = \"a\"\ncommand = [\"/s\"]\nshell = true\n"),
              HasSubstr("\"shell\" is unknown"));
  EXPECT_THAT(with("name = \"a\"\ncommand = [\"/s\"]\ntimeout_seconds = 0\n"),
              HasSubstr("timeout_seconds: give a whole number from 1 to 600"));
  EXPECT_THAT(problems("name = \"a\"\n"), HasSubstr("evaluate.grader"));
}

TEST(KindTest, AJudgeHasAnAddressOrAJobAndSaysWhereItsScoreStands) {
  const auto problem = [](std::string_view keys) {
    const Resolution job = ResolveText(
        "[job]\nkind = \"evaluate\"\nmodel = \"m\"\ndata = \"p.jsonl\"\n"
        "[compute]\ngpu_type = \"H100\"\n[[evaluate.grader]]\ntype = \"judge\"\n" +
        std::string(keys));
    return Describe(job.problems);
  };
  const std::string url = "name = \"good\"\nurl = \"https://a.example/v1/\"\nmodel = \"x\"\n";
  const std::string prompt = "prompt = \"Q {prompt} A {answer} R {reference}\"\n";
  const std::string pattern = "score_pattern = \"Score: ([0-9.]+)\"\n";
  const std::string job = "name = \"good\"\njob = \"job-1\"\n";
  EXPECT_EQ(problem(url + prompt + pattern), "");
  EXPECT_EQ(problem(job + prompt +
                    "score_member = \"score\"\nhigh = 10\nretries = 0\n"
                    "max_calls = 5\nmax_tokens = 8\ntimeout_seconds = 600\n"),
            "");
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {prompt + pattern + "name = \"a\"\n", "a judge has either url"},
      {url + "job = \"job-1\"\n" + prompt + pattern, "a judge has either url"},
      {job + "secret = \"k\"\n" + prompt + pattern, "model and secret go with url"},
      {"name = \"a\"\nurl = \"https://a\"\n" + prompt + pattern, "model is missing"},
      {url + pattern, "with {answer} where the answer goes"},
      {url + "prompt = \"how good?\"\n" + pattern, "with {answer} where the answer goes"},
      {url + prompt, "say where the score stands in the reply"},
      {url + prompt + pattern + "score_member = \"s\"\n", "say where the score stands"},
      {url + prompt + "score_pattern = \"[0-9]\"\n", "put the number into a group"},
      {url + prompt + "score_pattern = \"(\"\n", "score_pattern: missing )"},
      {url + prompt + pattern + "command = [\"/a\"]\n", "\"command\" is unknown"},
      {url + prompt + pattern + "max_calls = 0\n", "max_calls: give a whole number from 1"},
      {url + prompt + pattern + "retries = 1.5\n", "retries: give a whole number from 0 to 20"},
  };
  for (const auto& [keys, says] : wrong) EXPECT_THAT(problem(keys), HasSubstr(says)) << keys;
  for (const char* address : {"ftp://a", "a.example", "https://me:pw@a", "https://a/?key=x",
                              "https://a/v1/../admin", "https://a/chat/completions"}) {
    EXPECT_THAT(problem(fmt::format("name = \"a\"\nmodel = \"x\"\nurl = \"{}\"\n", address) +
                        prompt + pattern),
                HasSubstr("url: "))
        << address;
  }
}

TEST(KindTest, AJudgesPromptIsFilledInOnce) {
  EXPECT_EQ(
      FillJudgePrompt("{prompt}|{answer}|{reference}|{answer}{", "p{answer}", "{reference}", "r"),
      "p{answer}|{reference}|r|{reference}{");
}

TEST(KindTest, ProgramsThatGradeAreToldInEveryForm) {
  const Resolution yaml = Resolve(
      "job:\n  kind: evaluate\n  model: m\n  data: p.jsonl\ncompute:\n  gpu_type: H100\n"
      "evaluate:\n  grader:\n  - type: command\n    name: my_score\n"
      "    command: [/opt/graders/score, \"a, b\"]\n    high: 10\n",
      "job.yaml", {});
  const Resolution json = Resolve(
      R"({"job": {"kind": "evaluate", "model": "m", "data": "p.jsonl"},
          "compute": {"gpu_type": "H100"},
          "evaluate": {"grader": [{"type": "command", "name": "my_score",
                                   "command": ["/opt/graders/score", "a, b"], "high": 10}]}})",
      "job.json", {});
  for (const Resolution* job : {&yaml, &json}) {
    ASSERT_TRUE(job->ok()) << Describe(job->problems);
    ASSERT_EQ(job->spec.evaluate.grader.size(), 1u);
    const Grader grader = ParseGrader(job->spec.evaluate.grader[0]).value();
    EXPECT_EQ(grader.name, "my_score");
    EXPECT_THAT(grader.command, ::testing::ElementsAre("/opt/graders/score", "a, b"));
    EXPECT_EQ(grader.high, 10);
  }
}

TEST(KindTest, AJobThatTrainsShowsNoKeysOfAnswering) {
  const Resolution job = ResolveText(Minimal());
  ASSERT_TRUE(job.ok()) << Describe(job.problems);
  EXPECT_EQ(job.spec.job.kind, kTrainingKind);
  EXPECT_EQ(TextOf(job, "generate.top_k"), "(absent)");
  EXPECT_EQ(TextOf(job, "lora.r"), "16");
}

TEST(KindTest, KeysOfTheOtherKindAreRefusedByNameAndLine) {
  const std::string answers =
      Describe(ResolveText(Generate("[lora]\nr = 8\n[data]\npacking = true\nval = \"v.jsonl\"\n"
                                    "[hyperparameters]\nlearning_rate = 1e-4\n"))
                   .problems);
  EXPECT_THAT(answers, HasSubstr("lora.r:8: a job of kind = \"generate\" trains nothing"));
  EXPECT_THAT(answers, HasSubstr("data.packing:10: "));
  EXPECT_THAT(answers, HasSubstr("data.val:11: "));
  EXPECT_THAT(answers, HasSubstr("hyperparameters.learning_rate:13: "));
  const std::string trains =
      Describe(ResolveText(Minimal("[generate]\ntemperature = 1.0\n")).problems);
  EXPECT_THAT(trains, HasSubstr("generate.temperature:7: is for jobs of kind = \"generate\""));
}

TEST(KindTest, TrainingMayStartFromAnAdapterUnlessAllIsTrained) {
  const Resolution job = ResolveText(Minimal(), {Set("job.adapter", "job-a")});
  ASSERT_TRUE(job.ok()) << Describe(job.problems);
  EXPECT_EQ(job.spec.job.adapter, "job-a");
  EXPECT_THAT(Describe(ResolveText(Minimal("[training]\nmode = \"full_finetune\"\n"),
                                   {Set("job.adapter", "job-a")})
                           .problems),
              HasSubstr("has no adapters: merge it first"));
}

TEST(KindTest, VariablesForTrainingDoNotEndAJobThatAnswers) {
  const Resolution job = ResolveText(Generate(), {Env("TRAIN_LEARNING_RATE", "1e-4")});
  EXPECT_TRUE(job.ok()) << Describe(job.problems);
  EXPECT_THAT(Describe(job.warnings), HasSubstr("hyperparameters.learning_rate"));
}

TEST(KindTest, TheFirstRowsAndAnotherTemplateMayBeAskedForByBothKinds) {
  const Resolution job =
      ResolveText(Generate("[data]\nmax_examples = 5\nchat_template = \"{{ messages }}\"\n"));
  ASSERT_TRUE(job.ok()) << Describe(job.problems);
  EXPECT_EQ(job.spec.data.max_examples, 5);
}

TEST(KindTest, WhatCannotBeAnsweredIsRefused) {
  const auto problems = [](std::string_view rest) {
    return Describe(ResolveText(Generate(rest)).problems);
  };
  EXPECT_EQ(problems("nodes = 2\ngpus_per_node = 1\n"), "");
  EXPECT_THAT(problems("[generate]\nnum_samples = 2\n"),
              HasSubstr("generate.num_samples:8: with a temperature of 0"));
  EXPECT_THAT(problems("[generate]\ntop_p = 0\n"), HasSubstr("generate.top_p:8: must be"));
  EXPECT_THAT(problems("[generate]\ntemperature = nan\n"), HasSubstr("generate.temperature:8: "));
  EXPECT_THAT(problems("[generate]\nmax_tokns = 3\n"), HasSubstr("generate.max_tokns:8: unknown"));
  EXPECT_THAT(
      Describe(ResolveText("[job]\nkind = \"answer\"\nmodel = \"m\"\ndata = \"d\"\n"
                           "[compute]\ngpu_type = \"H100\"\n")
                   .problems),
      HasSubstr(
          "job.kind:2: must be \"sft\", \"generate\", \"serve\", \"evaluate\" or \"export\""));
}

TEST(KindTest, AJobThatEvaluatesReadsRowsOfTrainingAndNamesItsMetrics) {
  const auto evaluate = [](const std::string& rest) {
    return ResolveText(
        "[job]\nkind = \"evaluate\"\nmodel = \"m\"\nadapter = \"job-a\"\ndata = \"h.jsonl\"\n"
        "[compute]\ngpu_type = \"H100\"\n" +
        rest);
  };
  const Resolution job = evaluate(
      "gpu_count = 4\n[data]\ncolumns = [\"prompt=ask\"]\non_bad_rows = \"skip\"\n"
      "max_examples = 9\n[generate]\nmax_new_tokens = 5\n[evaluate]\n"
      "metrics = [\"regex\", \"rouge_l\"]\npattern = \"(?i)yes\"\n");
  ASSERT_TRUE(job.ok()) << Describe(job.problems);
  EXPECT_TRUE(job.spec.evaluates() && job.spec.generates());
  EXPECT_THAT(job.spec.evaluate.metrics, ::testing::ElementsAre("regex", "rouge_l"));
  EXPECT_EQ(job.spec.evaluate.pattern, "(?i)yes");
  EXPECT_EQ(job.spec.data.max_examples, 9);
  EXPECT_EQ(TextOf(job, "generate.num_samples"), "(absent)");
  EXPECT_EQ(TextOf(evaluate(""), "evaluate.metrics"), "exact_match,f1,rouge_l");
  EXPECT_EQ(evaluate("gpu_count = 4\nnodes = 2\n").spec.compute.nodes, 2);
  const auto problems = [&](const std::string& rest) { return Describe(evaluate(rest).problems); };
  EXPECT_THAT(problems("[evaluate]\nmetrics = [\"loss\"]\n"),
              HasSubstr("evaluate.metrics:9: \"loss\" is no metric of answers"));
  EXPECT_THAT(problems("[evaluate]\nmetrics = [\"f1\", \"f1\"]\n"), HasSubstr("twice"));
  EXPECT_THAT(problems("[evaluate]\nmetrics = [\"regex\"]\npattern = \"(?=a)\"\n"),
              HasSubstr("evaluate.pattern:10: invalid perl operator"));
  EXPECT_THAT(problems("[generate]\nnum_samples = 2\n"),
              HasSubstr("generate.num_samples:9: a job of kind = \"evaluate\" grades one answer"));
  EXPECT_THAT(problems("[data]\npacking = true\n"), HasSubstr("data.packing:9: a job of kind"));
  EXPECT_THAT(Describe(ResolveText(Generate("[evaluate]\npattern = \"a\"\n")).problems),
              HasSubstr("evaluate.pattern:8: is for jobs of kind = \"evaluate\""));
}

TEST(KindTest, AJobThatServesHasNoFileOneProcessAndATimeLimit) {
  const auto serve = [](const std::string& job, const std::string& rest) {
    return ResolveText("[job]\nkind = \"serve\"\nmodel = \"m\"\n" + job +
                       "[compute]\ngpu_type = \"H100\"\n" + rest);
  };
  const Resolution job = serve("", "[scheduling]\ntime_limit = \"8h\"\n");
  ASSERT_TRUE(job.ok()) << Describe(job.problems);
  EXPECT_TRUE(job.spec.serves() && job.spec.generates());
  EXPECT_EQ(TextOf(job, "job.data"), "(absent)");
  EXPECT_THAT(NeededFiles(job), IsEmpty());
  EXPECT_THAT(Describe(serve("", "").problems), HasSubstr("scheduling.time_limit:0: is missing"));
  const Resolution several =
      serve("", "nodes = 2\ngpus_per_node = 4\n[scheduling]\ntime_limit = \"1h\"\n");
  ASSERT_TRUE(several.ok()) << Describe(several.problems);
  EXPECT_EQ(several.spec.compute.gpu_count, 8);
  EXPECT_THAT(
      Describe(serve("data = \"d\"\n", "[scheduling]\ntime_limit = \"1h\"\n").problems),
      HasSubstr("job.data:4: a job of kind = \"serve\" has no file of prompts; leave it out"));
  EXPECT_THAT(Describe(serve("", "[lora]\nr = 4\n[scheduling]\ntime_limit = \"1h\"\n").problems),
              HasSubstr("lora.r:7: a job of kind = \"serve\" trains nothing"));
}

std::string Export(std::string_view rest, std::string_view job = "adapter = \"job-a\"\n") {
  return "[job]\nkind = \"export\"\nmodel = \"m\"\n" + std::string(job) +
         "[compute]\ngpu_type = \"H100\"\n" + std::string(rest);
}

TEST(KindTest, AnExportHasItsOwnKeysAndMayLeaveItsRowsOut) {
  const Resolution job = ResolveText(
      Export("[export]\nform = \"gguf\"\ntype = \"q8_0\"\nbase = \"original\"\n"
             "trained_on = \"nf4_single\"\ncompare_tokens = 100\n[data]\nloss_on = \"all\"\n"));
  ASSERT_TRUE(job.ok()) << Describe(job.problems);
  EXPECT_TRUE(job.spec.exports());
  EXPECT_FALSE(job.spec.generates() || job.spec.trains());
  const JobSpec::Export& made = job.spec.exporting;
  EXPECT_EQ(made.form, ExportForm::kGguf);
  EXPECT_EQ(made.type, ExportType::kQ8);
  EXPECT_EQ(made.base, ExportBase::kOriginal);
  EXPECT_EQ(made.trained_on, TrainedOn::kNf4Single);
  EXPECT_EQ(made.compare_tokens, 100);
  EXPECT_THAT(NeededFiles(job), IsEmpty());
  EXPECT_EQ(TextOf(job, "lora.r"), "(absent)");
  EXPECT_TRUE(ResolveText(Export("[export]\nform = \"gguf\"\n", "")).ok())
      << "a base alone can be written as GGUF";
}

TEST(KindTest, WhatCannotBeExportedIsRefused) {
  const auto problems = [](std::string_view rest, std::string_view job = "adapter = \"job-a\"\n") {
    return Describe(ResolveText(Export(rest, job)).problems);
  };
  EXPECT_THAT(problems("", ""), HasSubstr("job.adapter:0: is missing: a merged model is made of"));
  EXPECT_THAT(problems("[export]\ntype = \"q8_0\"\n"),
              HasSubstr("export.type:8: q8_0 is a type of GGUF"));
  EXPECT_THAT(problems("[export]\nform = \"vllm\"\n", ""),
              HasSubstr("job.adapter:0: is missing: an adapter is what is written"));
  EXPECT_THAT(problems("[export]\nform = \"vllm\"\ntype = \"f32\"\n"),
              HasSubstr("export.type:9: is of merged weights, and form = \"vllm\" has"));
  EXPECT_EQ(problems("[export]\nform = \"vllm\"\n"), "");
  EXPECT_THAT(problems("gpu_count = 2\n"), HasSubstr("a job of kind = \"export\" is one process"));
  EXPECT_THAT(problems("[lora]\nr = 4\n"),
              HasSubstr("lora.r:8: a job of kind = \"export\" trains nothing"));
  EXPECT_THAT(problems("[generate]\nseed = 4\n"),
              HasSubstr("generate.seed:8: is for jobs of kind = \"generate\""));
  EXPECT_THAT(Describe(ResolveText(Minimal("[export]\nform = \"gguf\"\n")).problems),
              HasSubstr("export.form:7: is for jobs of kind = \"export\""));
  EXPECT_THAT(Describe(ResolveText(Generate("[export]\nform = \"gguf\"\n")).problems),
              HasSubstr("export.form:8: is for jobs of kind = \"export\""));
}

}  // namespace
}  // namespace sft::spec

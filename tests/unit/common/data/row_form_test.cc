#include "common/data/row_form.h"

#include <gtest/gtest.h>

#include "common/base/json.h"

namespace sft::data {
namespace {

TEST(RowFormTest, EachFormIsToldByItsColumns) {
  const std::pair<const char*, Form> cases[] = {
      {R"({"messages":[{"role":"user","content":"2+2?"},
                       {"role":"assistant","content":"4","weight":1}]})",
       Form::kMessages},
      {R"({"conversations":[{"from":"human","value":"2+2?"},{"from":"gpt","value":"4"}],
           "system":"x"})",
       Form::kShareGpt},
      {R"({"conversation":[{"from":"human","value":"a"}]})", Form::kShareGpt},
      {R"({"messages":[{"from":"human","value":"a"}]})", Form::kShareGpt},
      {R"({"conversations":[{"role":"user","content":"a"}]})", Form::kMessages},
      {R"({"conversations":[{"role":"user","value":"a"}]})", Form::kMixed},
      {R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","value":"a"}]})",
       Form::kMixed},
      {R"({"prompt":"The sky is","completion":" blue."})", Form::kCompletion},
      {R"({"prompt":"a","response":"b"})", Form::kCompletion},
      {R"({"prompt":"a","answer":"b"})", Form::kCompletion},
      {R"({"instruction":"Add","input":"2 2","output":"4","history":[["q","a"]]})", Form::kAlpaca},
      {R"({"instruction":"Add","response":"4"})", Form::kAlpaca},
      {R"({"question":"2+2?","answer":"4"})", Form::kQuestion},
      {R"({"query":"a","response":"b"})", Form::kQuestion},
      {R"({"INSTRUCTION":"a","RESPONSE":"b"})", Form::kAlpaca},
      {R"({"text":"a"})", Form::kText},
      // Pairs that repeat the chosen conversation can be learnt from.
      {R"({"prompt":"a","chosen":[],"rejected":[],"messages":[{"role":"user","content":"a"}]})",
       Form::kMessages},
  };
  for (const auto& [row, form] : cases) {
    const RowShape shape = ShapeOf(row);
    EXPECT_TRUE(shape.is_json) << row;
    EXPECT_EQ(FormName(shape.form), FormName(form)) << row;
    EXPECT_EQ(shape.problem, "") << row;
  }
}

TEST(RowFormTest, FormsThatTuningCannotUseAreNamed) {
  const std::tuple<const char*, Form, const char*> cases[] = {
      {R"({"prompt":"2+2?","chosen":"4","rejected":"5"})", Form::kPreference, "preference pair"},
      {R"({"chosen":[{}],"rejected":[{}]})", Form::kPreference, "preference pair"},
      {R"({"conversations":[{"from":"human","value":"a"}],"chosen":{},"rejected":{}})",
       Form::kPreference, "preference pair"},
      {R"({"input":{"messages":[]},"preferred_output":[],"non_preferred_output":[]})",
       Form::kPreference, "preference pair"},
      {R"({"prompt":"2+2?","completion":"4","label":true})", Form::kUnpaired, "KTO"},
      {R"({"messages":[{"role":"user","content":"a"}],"kto_tag":false})", Form::kUnpaired, "KTO"},
      {R"({"segments":[{"label":false,"text":"Q"}]})", Form::kSegments, "segments"},
      {R"({"input_ids":[1],"labels":[-100]})", Form::kTokens, "tokens of one tokenizer"},
      {R"({"prompt":"a"})", Form::kPromptOnly, "without an answer"},
      {R"({"texts":"a"})", Form::kUnknown, "data.columns"},
      {R"({"instruction":"a"})", Form::kUnknown, "none of the row forms"},
      {R"({"instruction":"a","output":1})", Form::kAlpaca, "must be text"},
      {R"({"question":[],"answer":"b"})", Form::kQuestion, "must be text"},
      {R"({"prompt":"a","response":[]})", Form::kCompletion, "\"prompt\" and \"response\""},
      {R"({"conversations":[]})", Form::kShareGpt, "\"conversations\" must be a list"},
      {R"({"conversations":[{"from":"human"}]})", Form::kMixed, "message 1"},
  };
  for (const auto& [row, form, problem] : cases) {
    const RowShape shape = ShapeOf(row);
    EXPECT_EQ(FormName(shape.form), FormName(form)) << row;
    EXPECT_NE(shape.problem.find(problem), std::string::npos) << row << ": " << shape.problem;
  }
  // A label that is a class of the text says nothing of the answer.
  EXPECT_EQ(ShapeOf(R"({"prompt":"a","completion":"b","label":3})").form, Form::kCompletion);
}

TEST(RowFormTest, AJobThatComparesAnswersReadsPairsAndMarks) {
  const char* const pair = R"({"prompt":"a","chosen":"b","rejected":"c"})";
  const char* const repeated =
      R"({"chosen":[],"rejected":[],"messages":[{"role":"user","content":"a"}]})";
  const char* const marked = R"({"prompt":"a","completion":"b","label":false})";
  const char* const conversation = R"({"messages":[{"role":"user","content":"a"}],"label":true})";
  const std::tuple<const char*, Learns, Form, const char*> cases[] = {
      {pair, Learns::kPairs, Form::kPreference, ""},
      {pair, Learns::kMarked, Form::kPreference, ""},
      {repeated, Learns::kPairs, Form::kPreference, ""},
      {marked, Learns::kMarked, Form::kUnpaired, ""},
      {conversation, Learns::kMarked, Form::kUnpaired, ""},
      {R"({"conversations":[{"from":"human","value":"a"}],"label":true})", Learns::kMarked,
       Form::kUnpaired, ""},
      {R"({"instruction":"a","output":"b","label":true})", Learns::kMarked, Form::kUnpaired, ""},
      {marked, Learns::kPairs, Form::kUnpaired, "training.loss = \"kto\""},
      {R"({"text":"a"})", Learns::kPairs, Form::kText, "no preference pair"},
      {R"({"text":"a"})", Learns::kMarked, Form::kText, "\"messages\" with \"label\""},
      {R"({"chosen":"a","rejected":[]})", Learns::kPairs, Form::kPreference, "both be text"},
      {R"({"chosen":1,"rejected":2})", Learns::kPairs, Form::kPreference, "both be text"},
  };
  for (const auto& [row, learns, form, problem] : cases) {
    const RowShape shape = ShapeOf(row, {}, learns);
    EXPECT_EQ(FormName(shape.form), FormName(form)) << row;
    EXPECT_EQ(shape.problem.empty(), *problem == '\0') << row << ": " << shape.problem;
    EXPECT_NE(shape.problem.find(problem), std::string::npos) << row << ": " << shape.problem;
  }
}

TEST(RowFormTest, ExportsAndEvaluationsReadTheGoodAnswers) {
  EXPECT_EQ(LearnsOf("sft", "export"), Learns::kChosen);
  EXPECT_EQ(LearnsOf("sft", "evaluate"), Learns::kChosen);
  EXPECT_EQ(LearnsOf("dpo", "sft"), Learns::kPairs);
  for (const char* row : {R"({"prompt":"a","chosen":"b","rejected":"c"})",
                          R"({"prompt":"a","completion":"b","label":true})", R"({"text":"a"})"}) {
    EXPECT_EQ(ShapeOf(row, {}, Learns::kChosen).problem, "") << row;
  }
  EXPECT_NE(ShapeOf(R"({"prompt":"a"})", {}, Learns::kChosen).problem, "");
}

TEST(RowFormTest, NamedColumnsStandForOthersAndHideTheirs) {
  const RowNames names{.columns = {{"ask", "prompt"}, {"reply", "completion"}}, .roles = {}};
  EXPECT_EQ(ShapeOf(R"({"ask":"a","reply":"b"})", names).form, Form::kCompletion);
  EXPECT_EQ(ShapeOf(R"({"ask":"a","reply":"b","prompt":7})", names).problem, "");
  EXPECT_EQ(ShapeOf(R"({"prompt":"a","completion":"b"})", names).form, Form::kUnknown);
}

TEST(RowFormTest, CountsAreListedWithUnknownRowsLast) {
  FormCounts counts = {};
  EXPECT_EQ(FormsText(counts), "");
  counts[static_cast<int>(Form::kUnknown)] = 2;
  counts[static_cast<int>(Form::kText)] = 1;
  counts[static_cast<int>(Form::kShareGpt)] = 3;
  EXPECT_EQ(FormsText(counts), "3 ShareGPT, 1 text, 2 unknown");
}

}  // namespace
}  // namespace sft::data

"""What the theme settings cannot say: the timeline, the stage of constant height, the phone. Nothing comes from outside."""

from __future__ import annotations

import streamlit as st

CSS = """
<style>
  .block-container { max-width: 1240px; padding-top: 4.5rem; padding-bottom: 4rem; }
  h1 { font-size: 2.1rem !important; }
  [data-testid="stImage"] img { border-radius: 6px; border: 1px solid rgba(128, 128, 128, .28); background: #fff;
                                align-self: flex-start; object-fit: contain; }
  [data-testid="stImageCaption"] { text-align: left; }

  .v-icon { font-family: "Material Symbols Rounded"; font-size: 1.25em; line-height: 1; flex: none; user-select: none;
            font-feature-settings: "liga"; white-space: nowrap; width: 1.25em; overflow: hidden; }
  .v-row { display: flex; gap: .65rem; align-items: flex-start; margin: .5rem 0; line-height: 1.5; }
  .v-row .v-icon { color: var(--v-accent); padding-top: .1em; }
  .v-body, .v-answer, .v-reason, .v-question, .v-quote
          { min-width: 0; overflow-wrap: anywhere; white-space: pre-wrap; }
  .v-thought .v-body { color: inherit; }
  .v-note, .v-faint { opacity: .72; }
  .v-faint { font-variant-numeric: tabular-nums; font-size: .9em; }
  .v-query { background: rgba(59, 130, 246, .13); padding: .1rem .45rem; border-radius: 5px; }
  .v-badge { background: rgba(34, 150, 84, .16); padding: .05rem .45rem; border-radius: 5px; font-size: .85em; }
  .v-hits { margin: 0; padding-left: 1.2rem; white-space: normal; }
  .v-hits li { margin: .1rem 0; }
  .v-quote { border-left: 3px solid var(--v-accent); margin: .4rem 0; padding: .1rem .8rem; font-style: normal; }
  .v-step { font-size: .85rem; font-weight: 600; letter-spacing: .02em; opacity: .6; }
  .v-question { font-size: 1.45rem; line-height: 1.35; margin: .2rem 0 0; padding: 0; font-weight: 650; }
  .v-section { font-size: 1.05rem; margin: .6rem 0 0; padding: 0; opacity: .75; font-weight: 600; }

  .v-doing { display: flex; align-items: center; gap: .55rem; font-weight: 600; opacity: .8; min-height: 1.8rem; }
  .v-answered .v-icon { color: #1f8a4c; } .v-failed .v-icon { color: #c2410c; }
  .v-answer { font-size: 1.6rem; line-height: 1.35; font-weight: 600; margin: .5rem 0 .3rem; }
  .v-answer.v-long { font-size: 1.1rem; font-weight: 450; }
  .v-reason { margin: .5rem 0; line-height: 1.55; }
  .v-now { height: 17rem; overflow: hidden; display: flex; flex-direction: column; justify-content: flex-end; }
  .v-now > div { margin-bottom: auto; }
  .v-pulse { width: .7rem; height: .7rem; border-radius: 50%; background: var(--v-accent);
             animation: v-pulse 1.2s ease-in-out infinite; }
  @keyframes v-pulse { 50% { opacity: .25; } }
  @media (prefers-reduced-motion: reduce) { .v-pulse { animation: none; } }
  .v-missing { border: 1px dashed rgba(128, 128, 128, .45); border-radius: 6px; padding: 1rem; line-height: 1.5;
               overflow-wrap: anywhere; opacity: .8; }
  .v-empty { min-height: 28rem; display: flex; align-items: center; justify-content: center; text-align: center; }

  .st-key-examples button { border-radius: 1.2rem; text-align: left; height: auto; }
  .st-key-examples button * { white-space: normal !important; overflow: visible !important; }

  [class*="st-key-document-"] .v-row { margin: 0; }
  [class*="st-key-document-"] { padding-top: .5rem; padding-bottom: .5rem; }
  h3 { font-size: 1.25rem !important; }

  .v-lamp { margin: .1rem 0; overflow-wrap: anywhere; }
  .v-aside { font-size: .88rem; opacity: .72; line-height: 1.45; margin-top: .5rem; }
  .v-problem { font-size: .92rem; opacity: .85; }
  .v-lamp::before { content: ""; display: inline-block; width: .6rem; height: .6rem; border-radius: 50%;
                    margin-right: .5rem; background: #d14343; }
  .v-lamp.v-up::before { background: #1f8a4c; }

  :root { --v-accent: #c2410c; }

  /* Two halves of one height, whether the agent works or has answered, a portrait page or a slide. */
  [class*="-stage"] { min-height: 33rem; }
  [class*="-stage"] [data-testid="stColumn"]:last-child [data-testid="stImage"] img
          { max-height: 28rem; width: auto !important; max-width: 100%; }
  [class*="-stage"] [data-testid="stColumn"]:first-child [data-testid="stImage"] img
          { max-height: 11rem; width: auto !important; max-width: 100%; }
  [class*="-step-"] [data-testid="stImage"] img { max-height: 20rem; width: auto !important; max-width: 100%; }
  [class*="st-key-open-"] button { text-align: left; min-height: 0; padding: 0; font-weight: 600; }
  [class*="st-key-run-"] { gap: .3rem; }
  [class*="-stage"] [data-testid="stImageCaption"] { width: auto !important; }

  @media (max-width: 640px) {
    .block-container { padding-left: 1rem; padding-right: 1rem; }
    .v-question { font-size: 1.2rem; } .v-answer { font-size: 1.3rem; }
      .v-now { height: 12rem; } .v-empty { min-height: 8rem; }
    [class*="-stage"] { min-height: 0; }
  }
</style>
"""


def apply() -> None:
    st.html(CSS)

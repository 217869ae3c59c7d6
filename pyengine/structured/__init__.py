"""Outputs held to a grammar: compiled once, then followed token by token."""

from pyengine.structured.compiler import CompiledGrammar, GrammarCompiler
from pyengine.structured.matcher import GrammarMatcher

__all__ = ["CompiledGrammar", "GrammarCompiler", "GrammarMatcher"]
